// A norm with gain and the rotation of one head become one op.
// RUN: ds4c-opt -p 'fuse-norm-rope'
// CHECK:      {{^}}  func.func @f
// CHECK-NEXT: ds4.norm_rope %x gain %g : tensor<4xf32> table %t {heads = 1 : i64, eps = 1.000000e-06 : f64}
// CHECK-NEXT: func.return
func.func @f(%x : tensor<?x4xf32>, %g : tensor<4xf32>, %t : tensor<?x2x1xf32>) -> tensor<?x4xf32> {
  %n = ds4.rms_norm %x, %g {eps = 1.0e-6 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %z = ds4.rope %n, %t {heads = 1, inverse = 0} : (tensor<?x4xf32>, tensor<?x2x1xf32>) -> tensor<?x4xf32>
  func.return %z : tensor<?x4xf32>
}
// -----
// A norm of heads and their rotation become one op.
// CHECK:      ds4.norm_rope %x table %t {heads = 2 : i64, eps = 1.000000e-06 : f64}
// CHECK-NEXT: func.return
func.func @f(%x : tensor<?x4xf32>, %g : tensor<4xf32>, %t : tensor<?x2x1xf32>) -> tensor<?x4xf32> {
  %n = ds4.head_norm %x {heads = 2, eps = 1.0e-6 : f64} : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %z = ds4.rope %n, %t {heads = 2, inverse = 0} : (tensor<?x4xf32>, tensor<?x2x1xf32>) -> tensor<?x4xf32>
  func.return %z : tensor<?x4xf32>
}
// -----
// A rotation back is left alone.
// UNCHANGED
func.func @f(%x : tensor<?x4xf32>, %g : tensor<4xf32>, %t : tensor<?x2x1xf32>) -> tensor<?x4xf32> {
  %n = ds4.rms_norm %x, %g {eps = 1.0e-6 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %z = ds4.rope %n, %t {heads = 1, inverse = 1} : (tensor<?x4xf32>, tensor<?x2x1xf32>) -> tensor<?x4xf32>
  func.return %z : tensor<?x4xf32>
}
// -----
// A norm of all channels before a rotation of two heads is left alone.
// UNCHANGED
func.func @f(%x : tensor<?x4xf32>, %g : tensor<4xf32>, %t : tensor<?x2x1xf32>) -> tensor<?x4xf32> {
  %n = ds4.rms_norm %x, %g {eps = 1.0e-6 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %z = ds4.rope %n, %t {heads = 2, inverse = 0} : (tensor<?x4xf32>, tensor<?x2x1xf32>) -> tensor<?x4xf32>
  func.return %z : tensor<?x4xf32>
}
// -----
// Other heads than those of the rotation are left alone.
// UNCHANGED
func.func @f(%x : tensor<?x4xf32>, %g : tensor<4xf32>, %t : tensor<?x2x1xf32>) -> tensor<?x4xf32> {
  %n = ds4.head_norm %x {heads = 2, eps = 1.0e-6 : f64} : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %z = ds4.rope %n, %t {heads = 1, inverse = 0} : (tensor<?x4xf32>, tensor<?x2x1xf32>) -> tensor<?x4xf32>
  func.return %z : tensor<?x4xf32>
}
// -----
// A norm with a second reader is left alone.
// UNCHANGED
func.func @f(%x : tensor<?x4xf32>, %g : tensor<4xf32>, %t : tensor<?x2x1xf32>) -> tensor<?x4xf32> {
  %n = ds4.rms_norm %x, %g {eps = 1.0e-6 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %z = ds4.rope %n, %t {heads = 1, inverse = 0} : (tensor<?x4xf32>, tensor<?x2x1xf32>) -> tensor<?x4xf32>
  %y = ds4.add %z, %n : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return %y : tensor<?x4xf32>
}
