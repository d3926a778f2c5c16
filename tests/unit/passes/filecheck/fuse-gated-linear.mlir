// Gate, up and SwiGLU become one op.
// RUN: ds4c-opt -p 'fuse-gated-linear'
// CHECK:      [[A:%.*]] = ds4.weight "gate"
// CHECK-NEXT: [[B:%.*]] = ds4.weight "up"
// CHECK-NEXT: [[Y:%.*]] = ds4.gated_linear %x, [[A]], [[B]] {clamp = 1.000000e+01 : f64}
// CHECK-NEXT: func.return [[Y]]
func.func @f(%x : tensor<?x4xf32>) -> tensor<?x4xf32> {
  %a = ds4.weight "gate" : tensor<4x4xf32>
  %g = ds4.linear %x, %a : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %b = ds4.weight "up" : tensor<4x4xf32>
  %u = ds4.linear %x, %b : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %y = ds4.swiglu %g, %u {clamp = 10.0 : f64} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return %y : tensor<?x4xf32>
}
// -----
// A product with a second reader is left alone.
// UNCHANGED
func.func @f(%x : tensor<?x4xf32>, %a : tensor<4x4xf32>, %b : tensor<4x4xf32>) -> tensor<?x4xf32> {
  %g = ds4.linear %x, %a : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %u = ds4.linear %x, %b : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %y = ds4.swiglu %g, %u {clamp = 10.0 : f64} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %z = ds4.add %y, %u : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return %z : tensor<?x4xf32>
}
// -----
// Products of two inputs are left alone.
// UNCHANGED
func.func @f(%x : tensor<?x4xf32>, %v : tensor<?x4xf32>, %a : tensor<4x4xf32>, %b : tensor<4x4xf32>) -> tensor<?x4xf32> {
  %g = ds4.linear %x, %a : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %u = ds4.linear %v, %b : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %y = ds4.swiglu %g, %u {clamp = 10.0 : f64} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return %y : tensor<?x4xf32>
}
