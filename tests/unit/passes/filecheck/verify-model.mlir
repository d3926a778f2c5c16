// A module that keeps every rule is left alone.
// RUN: ds4c-opt -p 'verify-model'
// UNCHANGED
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @step(%x : tensor<?x4xf32>, %q : tensor<?x8xf32>, %at : !ds4.block) -> tensor<?x8xf32> {
  %sink = ds4.weight "sink" : tensor<2xf32>
  %s = ds4.open : !ds4.state<@raw>
  %old = ds4.read_rows %s, %at {span = 7} : (!ds4.state<@raw>, !ds4.block) -> tensor<?x7x4xf32>
  %o = ds4.attention %q, %sink raw %old own %x at %at {scale = 0.5 : f64, window = 8, every = 0} : tensor<?x8xf32>, tensor<2xf32>, tensor<?x7x4xf32>, tensor<?x4xf32> -> tensor<?x8xf32>
  %t = ds4.write %s, %x at %at : !ds4.state<@raw>, tensor<?x4xf32>
  ds4.close %t : !ds4.state<@raw>
  func.return %o : tensor<?x8xf32>
}
// -----
// A state that no function opens.
// RUN: not ds4c-opt -p 'verify-model'
// CHECK: verify-model: states: expected every state to be used, got unused @idle
ds4.state @idle ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
// -----
// Host states need not be opened by a function.
// RUN: ds4c-opt -p 'verify-model'
// UNCHANGED
ds4.state @history host : tensor<?x1xi32> every 1
// -----
// A state opened twice in one function.
// RUN: not ds4c-opt -p 'verify-model'
// CHECK: verify-model: @step: @raw: expected one ds4.open, got two
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @step() {
  %a = ds4.open : !ds4.state<@raw>
  %b = ds4.open : !ds4.state<@raw>
  func.return
}
// -----
// A written version that is never closed is lost.
// RUN: not ds4c-opt -p 'verify-model'
// CHECK: verify-model: @step: @raw: expected one ds4.close of its last version, got 0
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @step(%x : tensor<?x4xf32>, %at : !ds4.block) {
  %a = ds4.open : !ds4.state<@raw>
  %b = ds4.write %a, %x at %at : !ds4.state<@raw>, tensor<?x4xf32>
  func.return
}
// -----
// A ring read after the block's rows were written.
// RUN: not ds4c-opt -p 'verify-model'
// CHECK: verify-model: @step: @raw: expected ring rows to be read before the block's rows are written, got ds4.read_rows after the write
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @step(%x : tensor<?x4xf32>, %at : !ds4.block) {
  %a = ds4.open : !ds4.state<@raw>
  %b = ds4.write %a, %x at %at : !ds4.state<@raw>, tensor<?x4xf32>
  %old = ds4.read_rows %b, %at {span = 7} : (!ds4.state<@raw>, !ds4.block) -> tensor<?x7x4xf32>
  ds4.close %b : !ds4.state<@raw>
  func.return
}
// -----
// Append rows read before the rows of the block are there.
// RUN: not ds4c-opt -p 'verify-model'
// CHECK: verify-model: @step: @rows: expected append rows to be written before they are read, got ds4.index_scores before the write
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @step(%x : tensor<?x4xf32>, %w : tensor<?x1xf32>, %at : !ds4.block, %win : !ds4.block) {
  %a = ds4.open : !ds4.state<@rows>
  %s = ds4.index_scores %x, %w, %a, %at {every = 4, scale = 1.0 : f64} : (tensor<?x4xf32>, tensor<?x1xf32>, !ds4.state<@rows>, !ds4.block) -> tensor<?x?xf32>
  %b = ds4.append %a, %x at %win : !ds4.state<@rows>, tensor<?x4xf32>
  ds4.close %b : !ds4.state<@rows>
  func.return
}
// -----
// Planes of an opaque state are read before the block's are written, as ring rows are.
// RUN: not ds4c-opt -p 'verify-model'
// CHECK: verify-model: @step: @plane: expected opaque rows to be read before the block's rows are written, got ds4.read_rows after the write
ds4.state @plane opaque : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 1, d0 - 1)>
func.func @step(%x : tensor<?x4xf32>, %at : !ds4.block) {
  %s = ds4.open : !ds4.state<@plane>
  %t = ds4.write %s, %x at %at : !ds4.state<@plane>, tensor<?x4xf32>
  %old = ds4.read_rows %t, %at {span = 1} : (!ds4.state<@plane>, !ds4.block) -> tensor<?x1x4xf32>
  ds4.close %t : !ds4.state<@plane>
  func.return
}
