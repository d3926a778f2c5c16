// A weight and a product that nobody reads go away.
// RUN: ds4c-opt -p 'dce'
// CHECK:      func.func @f(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
// CHECK-NEXT:   func.return %x
func.func @f(%x : tensor<?x4xf32>) -> tensor<?x4xf32> {
  %a = ds4.weight "w" : tensor<4x4xf32>
  %y = ds4.linear %x, %a : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  func.return %x : tensor<?x4xf32>
}
// -----
// What a close keeps alive stays.
// UNCHANGED
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @step(%x : tensor<?x4xf32>, %at : !ds4.block) {
  %win = ds4.windows %at {every = 4} : (!ds4.block) -> !ds4.block
  %a = ds4.open : !ds4.state<@rows>
  %b = ds4.append %a, %x at %win : !ds4.state<@rows>, tensor<?x4xf32>
  ds4.close %b : !ds4.state<@rows>
  func.return
}
