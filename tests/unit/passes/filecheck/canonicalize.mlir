// Ops without effect whose results nobody reads go away.
// RUN: ds4c-opt -p 'canonicalize'
// CHECK:      func.func @f(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
// CHECK-NEXT:   func.return %x
func.func @f(%x : tensor<?x4xf32>) -> tensor<?x4xf32> {
  %y = ds4.add %x, %x : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return %x : tensor<?x4xf32>
}
// -----
// A closed write stays although no op reads it.
// UNCHANGED
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @step(%x : tensor<?x4xf32>, %at : !ds4.block) {
  %a = ds4.open : !ds4.state<@raw>
  %b = ds4.write %a, %x at %at : !ds4.state<@raw>, tensor<?x4xf32>
  ds4.close %b : !ds4.state<@raw>
  func.return
}
