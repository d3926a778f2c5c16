// The macro becomes reads, pool, norm, rope, append, and the ring writes last.
// RUN: ds4c-opt -p 'expand-macros'
// CHECK:      [[KV:%.*]] = ds4.open : !ds4.state<@kv>
// CHECK-NEXT: [[SC:%.*]] = ds4.open : !ds4.state<@score>
// CHECK-NEXT: [[RW:%.*]] = ds4.open : !ds4.state<@rows>
// CHECK-NEXT: [[K:%.*]] = ds4.read_rows [[KV]], %at {span = 7 : i64}
// CHECK-NEXT: [[S:%.*]] = ds4.read_rows [[SC]], %at {span = 7 : i64}
// CHECK-NEXT: [[P:%.*]] = ds4.pool [[K]], %k, [[S]], %s, %at, %win {every = 4 : i64, lanes = 2 : i64}
// CHECK-NEXT: [[N:%.*]] = ds4.rms_norm [[P]], %gain {eps = 1.000000e-06 : f64}
// CHECK-NEXT: [[R:%.*]] = ds4.rope [[N]], %table {heads = 1 : i64, inverse = 0 : i64}
// CHECK-NEXT: [[A:%.*]] = ds4.append [[RW]], [[R]] at %win
// CHECK-NEXT: [[W:%.*]] = ds4.write [[KV]], %k at %at
// CHECK-NEXT: [[V:%.*]] = ds4.write [[SC]], %s at %at
// CHECK-NEXT: ds4.close [[W]]
// CHECK-NEXT: ds4.close [[V]]
// CHECK-NEXT: ds4.close [[A]]
ds4.state @kv ring : tensor<?x8xf32> every 4 reads affine_map<(d0) -> ((d0 floordiv 4) * 4 - 4, d0)>
ds4.state @score ring : tensor<?x8xf32> every 4 reads affine_map<(d0) -> ((d0 floordiv 4) * 4 - 4, d0)>
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @step(%k : tensor<?x8xf32>, %s : tensor<?x8xf32>, %gain : tensor<4xf32>, %table : tensor<?x2x1xf32>, %at : !ds4.block, %win : !ds4.block) {
  %a = ds4.open : !ds4.state<@kv>
  %b = ds4.open : !ds4.state<@score>
  %c = ds4.open : !ds4.state<@rows>
  %d, %e, %f = ds4.compressor_step(%k, %s, %gain, %table) state(%a, %b, %c) at %at windows %win {lanes = 2, eps = 1.0e-6 : f64} : tensor<?x8xf32>, tensor<?x8xf32>, tensor<4xf32>, tensor<?x2x1xf32>, !ds4.state<@kv>, !ds4.state<@score>, !ds4.state<@rows>
  ds4.close %d : !ds4.state<@kv>
  ds4.close %e : !ds4.state<@score>
  ds4.close %f : !ds4.state<@rows>
  func.return
}
// -----
// Nothing to expand.
// UNCHANGED
func.func @f(%x : tensor<?x4xf32>) -> tensor<?x4xf32> {
  %y = ds4.add %x, %x : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return %y : tensor<?x4xf32>
}
