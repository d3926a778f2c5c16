// Equal ops of equal values become one.
// RUN: ds4c-opt -p 'cse'
// CHECK:      [[A:%.*]] = ds4.weight "w"
// CHECK-NEXT: [[Y:%.*]] = ds4.linear %x, [[A]]
// CHECK-NEXT: ds4.add [[Y]], [[Y]]
func.func @f(%x : tensor<?x4xf32>) -> tensor<?x4xf32> {
  %a = ds4.weight "w" : tensor<4x4xf32>
  %b = ds4.weight "w" : tensor<4x4xf32>
  %y = ds4.linear %x, %a : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %z = ds4.linear %x, %b : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %s = ds4.add %y, %z : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return %s : tensor<?x4xf32>
}
// -----
// Reads of two versions of a state are not equal.
// UNCHANGED
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @step(%x : tensor<?x4xf32>, %w : tensor<?x1xf32>, %at : !ds4.block, %win : !ds4.block) -> (tensor<?x?xf32>, tensor<?x?xf32>) {
  %a = ds4.open : !ds4.state<@rows>
  %s = ds4.index_scores %x, %w, %a, %at {every = 4, scale = 1.0 : f64} : (tensor<?x4xf32>, tensor<?x1xf32>, !ds4.state<@rows>, !ds4.block) -> tensor<?x?xf32>
  %b = ds4.append %a, %x at %win : !ds4.state<@rows>, tensor<?x4xf32>
  %t = ds4.index_scores %x, %w, %b, %at {every = 4, scale = 1.0 : f64} : (tensor<?x4xf32>, tensor<?x1xf32>, !ds4.state<@rows>, !ds4.block) -> tensor<?x?xf32>
  ds4.close %b : !ds4.state<@rows>
  func.return %s, %t : tensor<?x?xf32>, tensor<?x?xf32>
}
// -----
// Ops with other attributes are not equal.
// UNCHANGED
func.func @f(%x : tensor<?x4xf32>) -> tensor<?x4xf32> {
  %y = ds4.swiglu %x, %x {clamp = 1.0 : f64} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %z = ds4.swiglu %x, %x {clamp = 2.0 : f64} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %s = ds4.add %y, %z : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return %s : tensor<?x4xf32>
}
