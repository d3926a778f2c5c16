// Mix, sublayer input and norm become one op.
// RUN: ds4c-opt -p 'fuse-hc-enter'
// CHECK:      [[H:%.*]], [[P:%.*]], [[M:%.*]] = ds4.hc_enter %x, %fn, %base, %scale, %gain {iters = 3 : i64, eps = 1.000000e-06 : f64, norm_eps = 1.000000e-05 : f64}
// CHECK-NEXT: ds4.hc_post %x, [[H]], [[P]], [[M]]
func.func @f(%x : tensor<?x2x4xf32>, %fn : tensor<8x8xf32>, %base : tensor<8xf32>, %scale : tensor<3xf32>, %gain : tensor<4xf32>) -> tensor<?x2x4xf32> {
  %pre, %post, %m = ds4.hc_mix %x, %fn, %base, %scale {iters = 3, eps = 1.0e-6 : f64, norm_eps = 1.0e-5 : f64} : (tensor<?x2x4xf32>, tensor<8x8xf32>, tensor<8xf32>, tensor<3xf32>) -> (tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>)
  %u = ds4.hc_pre %x, %pre : (tensor<?x2x4xf32>, tensor<?x2xf32>) -> tensor<?x4xf32>
  %h = ds4.rms_norm %u, %gain {eps = 1.0e-5 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %o = ds4.hc_post %x, %h, %post, %m : (tensor<?x2x4xf32>, tensor<?x4xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>) -> tensor<?x2x4xf32>
  func.return %o : tensor<?x2x4xf32>
}
// -----
// A sublayer input with a second reader is left alone.
// UNCHANGED
func.func @f(%x : tensor<?x2x4xf32>, %fn : tensor<8x8xf32>, %base : tensor<8xf32>, %scale : tensor<3xf32>, %gain : tensor<4xf32>) -> tensor<?x2x4xf32> {
  %pre, %post, %m = ds4.hc_mix %x, %fn, %base, %scale {iters = 3, eps = 1.0e-6 : f64, norm_eps = 1.0e-5 : f64} : (tensor<?x2x4xf32>, tensor<8x8xf32>, tensor<8xf32>, tensor<3xf32>) -> (tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>)
  %u = ds4.hc_pre %x, %pre : (tensor<?x2x4xf32>, tensor<?x2xf32>) -> tensor<?x4xf32>
  %h = ds4.rms_norm %u, %gain {eps = 1.0e-5 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %y = ds4.add %h, %u : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %o = ds4.hc_post %x, %y, %post, %m : (tensor<?x2x4xf32>, tensor<?x4xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>) -> tensor<?x2x4xf32>
  func.return %o : tensor<?x2x4xf32>
}
// -----
// Norms with two epsilons are left alone.
// UNCHANGED
func.func @f(%x : tensor<?x2x4xf32>, %fn : tensor<8x8xf32>, %base : tensor<8xf32>, %scale : tensor<3xf32>, %gain : tensor<4xf32>) -> tensor<?x2x4xf32> {
  %pre, %post, %m = ds4.hc_mix %x, %fn, %base, %scale {iters = 3, eps = 1.0e-6 : f64, norm_eps = 1.0e-5 : f64} : (tensor<?x2x4xf32>, tensor<8x8xf32>, tensor<8xf32>, tensor<3xf32>) -> (tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>)
  %u = ds4.hc_pre %x, %pre : (tensor<?x2x4xf32>, tensor<?x2xf32>) -> tensor<?x4xf32>
  %h = ds4.rms_norm %u, %gain {eps = 1.0e-6 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %o = ds4.hc_post %x, %h, %post, %m : (tensor<?x2x4xf32>, tensor<?x4xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>) -> tensor<?x2x4xf32>
  func.return %o : tensor<?x2x4xf32>
}
// -----
// A mix that is read above the norm is left alone, since the fused op stands at the norm.
// UNCHANGED
func.func @f(%x : tensor<?x2x4xf32>, %fn : tensor<8x8xf32>, %base : tensor<8xf32>, %scale : tensor<3xf32>, %gain : tensor<4xf32>, %gated : tensor<?x4xf32>) -> tensor<?x2x4xf32> {
  %pre, %post, %m = ds4.hc_mix %x, %fn, %base, %scale {iters = 3, eps = 1.0e-6 : f64, norm_eps = 1.0e-5 : f64} : (tensor<?x2x4xf32>, tensor<8x8xf32>, tensor<8xf32>, tensor<3xf32>) -> (tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>)
  %u = ds4.hc_pre %x, %pre : (tensor<?x2x4xf32>, tensor<?x2xf32>) -> tensor<?x4xf32>
  %o = ds4.hc_post %x, %gated, %post, %m : (tensor<?x2x4xf32>, tensor<?x4xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>) -> tensor<?x2x4xf32>
  %h = ds4.rms_norm %u, %gain {eps = 1.0e-5 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %z = ds4.hc_post %o, %h, %post, %m : (tensor<?x2x4xf32>, tensor<?x4xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>) -> tensor<?x2x4xf32>
  func.return %z : tensor<?x2x4xf32>
}
