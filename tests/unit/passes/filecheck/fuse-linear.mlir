// All products of one input become one op, at the place of the first.
// RUN: ds4c-opt -p 'fuse-linear'
// CHECK:      [[A:%.*]] = ds4.weight "a"
// CHECK-NEXT: [[B:%.*]] = ds4.weight "b"
// CHECK-NEXT: [[Y:%.*]], [[Z:%.*]] = ds4.multi_linear %x, [[A]], [[B]]
// CHECK-NEXT: [[G:%.*]] = ds4.weight "g"
// CHECK-NEXT: [[N:%.*]] = ds4.rms_norm [[Y]], [[G]]
// CHECK-NEXT: ds4.add [[N]], [[Z]]
func.func @f(%x : tensor<?x4xf32>) -> tensor<?x4xf32> {
  %a = ds4.weight "a" : tensor<4x4xf32>
  %y = ds4.linear %x, %a : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %g = ds4.weight "g" : tensor<4xf32>
  %n = ds4.rms_norm %y, %g {eps = 1.0e-6 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %b = ds4.weight "b" : tensor<4x4xf32>
  %z = ds4.linear %x, %b : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %o = ds4.add %n, %z : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return %o : tensor<?x4xf32>
}
// -----
// A weight that an op above reads too stays where it is.
// CHECK:      [[B:%.*]] = ds4.weight "b"
// CHECK-NEXT: [[V:%.*]] = ds4.linear %v, [[B]]
// CHECK-NEXT: [[A:%.*]] = ds4.weight "a"
// CHECK-NEXT: [[Y:%.*]], [[Z:%.*]] = ds4.multi_linear %x, [[A]], [[B]]
func.func @f(%x : tensor<?x4xf32>, %v : tensor<?x4xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>) {
  %b = ds4.weight "b" : tensor<4x4xf32>
  %w = ds4.linear %v, %b : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %a = ds4.weight "a" : tensor<4x4xf32>
  %y = ds4.linear %x, %a : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %z = ds4.linear %x, %b : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  func.return %w, %y, %z : tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>
}
// -----
// Single products of two inputs are left alone.
// UNCHANGED
func.func @f(%x : tensor<?x4xf32>, %v : tensor<?x4xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>) {
  %a = ds4.weight "a" : tensor<4x4xf32>
  %y = ds4.linear %x, %a : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %b = ds4.weight "b" : tensor<4x4xf32>
  %z = ds4.linear %v, %b : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  func.return %y, %z : tensor<?x4xf32>, tensor<?x4xf32>
}
