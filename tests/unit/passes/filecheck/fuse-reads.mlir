// Attention reads the ring itself.
// RUN: ds4c-opt -p 'fuse-reads'
// CHECK:      [[S:%.*]] = ds4.open : !ds4.state<@raw>
// CHECK-NEXT: ds4.attention %q, %sink raw [[S]] own %x at %at {scale = 5.000000e-01 : f64, window = 8 : i64, every = 0 : i64} : tensor<?x8xf32>, tensor<2xf32>, !ds4.state<@raw>
// CHECK-NEXT: ds4.write [[S]]
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @step(%x : tensor<?x4xf32>, %q : tensor<?x8xf32>, %sink : tensor<2xf32>, %at : !ds4.block) -> tensor<?x8xf32> {
  %s = ds4.open : !ds4.state<@raw>
  %old = ds4.read_rows %s, %at {span = 7} : (!ds4.state<@raw>, !ds4.block) -> tensor<?x7x4xf32>
  %o = ds4.attention %q, %sink raw %old own %x at %at {scale = 0.5 : f64, window = 8, every = 0} : tensor<?x8xf32>, tensor<2xf32>, tensor<?x7x4xf32>, tensor<?x4xf32> -> tensor<?x8xf32>
  %t = ds4.write %s, %x at %at : !ds4.state<@raw>, tensor<?x4xf32>
  ds4.close %t : !ds4.state<@raw>
  func.return %o : tensor<?x8xf32>
}
// -----
// Pool reads both rings itself.
// CHECK:      [[K:%.*]] = ds4.open : !ds4.state<@kv>
// CHECK-NEXT: [[S:%.*]] = ds4.open : !ds4.state<@score>
// CHECK-NEXT: ds4.pool [[K]], %x, [[S]], %x, %at, %win
ds4.state @kv ring : tensor<?x8xf32> every 4 reads affine_map<(d0) -> ((d0 floordiv 4) * 4 - 4, d0)>
ds4.state @score ring : tensor<?x8xf32> every 4 reads affine_map<(d0) -> ((d0 floordiv 4) * 4 - 4, d0)>
func.func @step(%x : tensor<?x8xf32>, %at : !ds4.block, %win : !ds4.block) -> tensor<?x4xf32> {
  %k = ds4.open : !ds4.state<@kv>
  %s = ds4.open : !ds4.state<@score>
  %a = ds4.read_rows %k, %at {span = 7} : (!ds4.state<@kv>, !ds4.block) -> tensor<?x7x8xf32>
  %b = ds4.read_rows %s, %at {span = 7} : (!ds4.state<@score>, !ds4.block) -> tensor<?x7x8xf32>
  %p = ds4.pool %a, %x, %b, %x, %at, %win {every = 4, lanes = 2} : (tensor<?x7x8xf32>, tensor<?x8xf32>, tensor<?x7x8xf32>, tensor<?x8xf32>, !ds4.block, !ds4.block) -> tensor<?x4xf32>
  func.return %p : tensor<?x4xf32>
}
// -----
// A read of another span than the window's is kept.
// UNCHANGED
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @step(%x : tensor<?x4xf32>, %q : tensor<?x8xf32>, %sink : tensor<2xf32>, %at : !ds4.block) -> tensor<?x8xf32> {
  %s = ds4.open : !ds4.state<@raw>
  %old = ds4.read_rows %s, %at {span = 9} : (!ds4.state<@raw>, !ds4.block) -> tensor<?x9x4xf32>
  %o = ds4.attention %q, %sink raw %old own %x at %at {scale = 0.5 : f64, window = 8, every = 0} : tensor<?x8xf32>, tensor<2xf32>, tensor<?x9x4xf32>, tensor<?x4xf32> -> tensor<?x8xf32>
  func.return %o : tensor<?x8xf32>
}
// -----
// A ring that is written before the rows are used would give new rows: the copy is kept.
// UNCHANGED
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @step(%x : tensor<?x4xf32>, %q : tensor<?x8xf32>, %sink : tensor<2xf32>, %at : !ds4.block) -> tensor<?x8xf32> {
  %s = ds4.open : !ds4.state<@raw>
  %old = ds4.read_rows %s, %at {span = 7} : (!ds4.state<@raw>, !ds4.block) -> tensor<?x7x4xf32>
  %t = ds4.write %s, %x at %at : !ds4.state<@raw>, tensor<?x4xf32>
  %o = ds4.attention %q, %sink raw %old own %x at %at {scale = 0.5 : f64, window = 8, every = 0} : tensor<?x8xf32>, tensor<2xf32>, tensor<?x7x4xf32>, tensor<?x4xf32> -> tensor<?x8xf32>
  ds4.close %t : !ds4.state<@raw>
  func.return %o : tensor<?x8xf32>
}
// -----
// Rows before the windows of a block are not rows before the block.
// UNCHANGED
ds4.state @kv ring : tensor<?x8xf32> every 4 reads affine_map<(d0) -> ((d0 floordiv 4) * 4 - 4, d0)>
func.func @step(%x : tensor<?x8xf32>, %at : !ds4.block, %win : !ds4.block) -> tensor<?x4xf32> {
  %k = ds4.open : !ds4.state<@kv>
  %a = ds4.read_rows %k, %win {span = 7} : (!ds4.state<@kv>, !ds4.block) -> tensor<?x7x8xf32>
  %p = ds4.pool %a, %x, %a, %x, %at, %win {every = 4, lanes = 2} : (tensor<?x7x8xf32>, tensor<?x8xf32>, tensor<?x7x8xf32>, tensor<?x8xf32>, !ds4.block, !ds4.block) -> tensor<?x4xf32>
  func.return %p : tensor<?x4xf32>
}
