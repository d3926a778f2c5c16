// Ops become calls named by digest; reads, writes and closes become buffers.
// RUN: ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=4},lower-to-kernels'
// CHECK:      func.func @step(%tokens: tensor<?xi32>, %at: !ds4.block) -> tensor<?x4xf32> {
// CHECK-NEXT:   [[T:%.*]] = ds4.weight "table"
// CHECK-NEXT:   [[X:%.*]] = ds4.call_kernel "embed_{{[0-9a-f]+}}"(%tokens, [[T]], %at) states [] {spec = "[\22embed\22,[[\22copies\22,1]],{{.*}}[\22count\22,\22count\22,\22int32\22,[1]
// CHECK-NEXT:   [[W:%.*]] = ds4.weight "w"
// CHECK-NEXT:   [[Y:%.*]] = ds4.call_kernel "linear_{{[0-9a-f]+}}"([[X]], [[W]], %at) states []
// CHECK-NEXT:   ds4.call_kernel "write_{{[0-9a-f]+}}"([[Y]], %at) states [@raw] {spec = "[\22write\22,[],[[\22state\22,\22ring\22,\22float32\22,[18,4],\22\22,320,1],[\22rows\22,\22in\22,\22float32\22,[8,4],\22\22,0,0],[\22at\22,\22block\22,\22int32\22,[8,2],\22\22,0,0]]]"}
// CHECK-NEXT:   func.return [[Y]]
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @step(%tokens : tensor<?xi32>, %at : !ds4.block) -> tensor<?x4xf32> {
  %t = ds4.weight "table" : tensor<9x4xf32>
  %x = ds4.embed %tokens, %t {copies = 1} : (tensor<?xi32>, tensor<9x4xf32>) -> tensor<?x1x4xf32>
  %w = ds4.weight "w" : tensor<4x1x4xf32>
  %y = ds4.linear %x, %w : (tensor<?x1x4xf32>, tensor<4x1x4xf32>) -> tensor<?x4xf32>
  %s = ds4.open : !ds4.state<@raw>
  %n = ds4.write %s, %y at %at : !ds4.state<@raw>, tensor<?x4xf32>
  ds4.close %n : !ds4.state<@raw>
  func.return %y : tensor<?x4xf32>
}
// -----
// Rows that are taken for their logits are as many as the plan has, for their maker and their readers.
// RUN: ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=3},lower-to-kernels'
// CHECK: ds4.call_kernel "take_rows_{{.*}}\22out\22,\22float32\22,[3,4]
// CHECK: ds4.call_kernel "linear_{{.*}}\22in\22,\22float32\22,[3,4]{{.*}}\22out\22,\22float32\22,[3,5]
func.func @step(%x : tensor<?x4xf32>, %at : !ds4.block, %logit_rows : !ds4.rows) -> tensor<?x5xf32> {
  %r = ds4.take_rows %x, %logit_rows {} : (tensor<?x4xf32>, !ds4.rows) -> tensor<?x4xf32>
  %w = ds4.weight "w" : tensor<5x4xf32>
  %y = ds4.linear %r, %w : (tensor<?x4xf32>, tensor<5x4xf32>) -> tensor<?x5xf32>
  func.return %y : tensor<?x5xf32>
}
// -----
// Windows, and what is made from them, have the size of windows for their maker and their readers.
// CHECK: ds4.call_kernel "windows_{{.*}}[\22windows\22,\22block\22,\22int32\22,[4,2]
// CHECK: ds4.call_kernel "rope_table_{{.*}}[\22at\22,\22block\22,\22int32\22,[4,2]{{.*}}[\22table\22,\22out\22,\22float32\22,[4,2,1]
// CHECK: ds4.call_kernel "pool_{{.*}}[\22rows\22,\22out\22,\22float32\22,[4,4]
// CHECK: ds4.call_kernel "rope_{{[0-9a-f]+.*}}[\22table\22,\22in\22,\22float32\22,[4,2,1]
func.func @step(%x : tensor<?x8xf32>, %at : !ds4.block) -> tensor<?x4xf32> {
  %c = ds4.weight "coarse" : tensor<2x2x1xf64>
  %f = ds4.weight "fine" : tensor<4x2x1xf64>
  %win = ds4.windows %at {every = 4} : (!ds4.block) -> !ds4.block
  %t = ds4.rope_table %win, %c, %f : (!ds4.block, tensor<2x2x1xf64>, tensor<4x2x1xf64>) -> tensor<?x2x1xf32>
  %k = ds4.weight "old" : tensor<2x7x8xf32>
  %p = ds4.pool %k, %x, %k, %x, %at, %win {every = 4, lanes = 2} : (tensor<2x7x8xf32>, tensor<?x8xf32>, tensor<2x7x8xf32>, tensor<?x8xf32>, !ds4.block, !ds4.block) -> tensor<?x4xf32>
  %r = ds4.rope %p, %t {heads = 1, inverse = 0} : (tensor<?x4xf32>, tensor<?x2x1xf32>) -> tensor<?x4xf32>
  func.return %r : tensor<?x4xf32>
}
// -----
// A fork copies rings and leaves pages to the runtime.
// RUN: ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=4},insert-snapshots,lower-to-kernels'
// CHECK:      func.func @fork(%args: tensor<4xi32>) {
// CHECK-NEXT:   ds4.call_kernel "fork_{{[0-9a-f]+}}"(%args) states [@raw] {spec = "[\22fork\22,[[\22align\22,1],[\22back\22,7]],[[\22state\22,\22ring\22,\22float32\22,[18,4],\22\22,320,1],[\22args\22,\22in\22,\22int32\22,[4],\22\22,0,0]]]"}
// CHECK-NEXT:   func.return
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
// -----
// Marks of a step, snapshot and restore: one kernel a ring, with its live form, places and the arena; no append rows.
// RUN: ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=4},insert-snapshots,lower-to-kernels'
// CHECK:      func.func @step(%x: tensor<?x4xf32>, %y: tensor<?x8xf32>, %at: !ds4.block, %marks: !ds4.marks) {
// CHECK-NEXT:   ds4.call_kernel "snapshot_rows_{{[0-9a-f]+}}"(%x, %at, %marks) states [@raw] {spec = "[\22snapshot_rows\22,[[\22align\22,1],[\22back\22,7]],[[\22state\22,\22ring\22,\22float32\22,[18,4],\22\22,896,1],[\22rows\22,\22in\22,\22float32\22,[8,4],\22\22,0,0],[\22at\22,\22block\22,\22int32\22,[8,2],\22\22,0,0],[\22marks\22,\22marks\22,\22int32\22,[3],\22\22,0,0],[\22offsets\22,\22offsets\22,\22int32\22,[3],\22\22,0,0],[\22snapshots\22,\22snapshots\22,\22float32\22,[],\22\22,0,0]]]"}
// CHECK-NEXT:   ds4.call_kernel "write_{{[0-9a-f]+}}"(%x, %at) states [@raw]
// CHECK-NEXT:   ds4.call_kernel "snapshot_rows_{{[0-9a-f]+}}"(%y, %at, %marks) states [@of4] {spec = "[\22snapshot_rows\22,[[\22align\22,4],[\22back\22,4]],[[\22state\22,\22ring\22,\22float32\22,[18,8]
// CHECK-NEXT:   ds4.call_kernel "write_{{[0-9a-f]+}}"(%y, %at) states [@of4]
// CHECK-NEXT:   func.return
// CHECK:      func.func @snapshot(%marks: !ds4.marks) {
// CHECK-NEXT:   ds4.call_kernel "snapshot_{{[0-9a-f]+}}"(%marks) states [@raw] {spec = "[\22snapshot\22,[[\22align\22,1],[\22back\22,7]],[[\22state\22,\22ring\22,\22float32\22,[18,4],\22\22,896,1],[\22marks\22,\22marks\22,\22int32\22,[3],\22\22,0,0],[\22offsets\22,\22offsets\22,\22int32\22,[3],\22\22,0,0],[\22snapshots\22,\22snapshots\22,\22float32\22,[],\22\22,0,0]]]"}
// CHECK-NEXT:   ds4.call_kernel "snapshot_{{[0-9a-f]+}}"(%marks) states [@of4] {spec = "[\22snapshot\22,[[\22align\22,4],[\22back\22,4]]
// CHECK-NEXT:   func.return
// CHECK:      func.func @restore(%marks: !ds4.marks) {
// CHECK-NEXT:   ds4.call_kernel "restore_{{[0-9a-f]+}}"(%marks) states [@raw] {spec = "[\22restore\22,[[\22align\22,1],[\22back\22,7]]
// CHECK-NEXT:   ds4.call_kernel "restore_{{[0-9a-f]+}}"(%marks) states [@of4] {spec = "[\22restore\22,[[\22align\22,4],[\22back\22,4]]
// CHECK-NEXT:   func.return
// CHECK:      func.func @fork(
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
ds4.state @of4 ring : tensor<?x8xf32> every 4 reads affine_map<(d0) -> (((d0 floordiv 4) * 4) - 4, d0)>
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @step(%x : tensor<?x4xf32>, %y : tensor<?x8xf32>, %at : !ds4.block) {
  %a = ds4.open : !ds4.state<@raw>
  %b = ds4.open : !ds4.state<@of4>
  %a1 = ds4.write %a, %x at %at : !ds4.state<@raw>, tensor<?x4xf32>
  %b1 = ds4.write %b, %y at %at : !ds4.state<@of4>, tensor<?x8xf32>
  ds4.close %a1 : !ds4.state<@raw>
  ds4.close %b1 : !ds4.state<@of4>
  func.return
}
// -----
// Marks that come after the write would find the block's rows over the old ones.
// RUN: not ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=4},lower-to-kernels'
// CHECK: lower-to-kernels: @raw: expected ds4.snapshot_rows to use the version in force, got one that an earlier op replaced; move the read before the write
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @step(%x : tensor<?x4xf32>, %at : !ds4.block, %marks : !ds4.marks) {
  %a = ds4.open : !ds4.state<@raw>
  %n = ds4.write %a, %x at %at : !ds4.state<@raw>, tensor<?x4xf32>
  ds4.snapshot_rows %a, %x at %at marks %marks : !ds4.state<@raw>, tensor<?x4xf32>
  ds4.close %n : !ds4.state<@raw>
  func.return
}
// -----
// A function that is not code stays as text.
// UNCHANGED
builtin.module attributes {ds4.plan = {horizon = 10 : i64, context = 64 : i64, max_rows = 8 : i64, max_segments = 2 : i64, max_logit_rows = 4 : i64, page_tokens = 128 : i64, max_marks = 3 : i64, slot_bytes = 0 : i64, page_bytes = 0 : i64, workspace_bytes = 0 : i64, weights_bytes = 0 : i64, io_bytes = 0 : i64, io_tokens = 0 : i64, io_block = 0 : i64, io_page_tables = 0 : i64, io_logit_rows = 0 : i64, io_fork_args = 0 : i64, io_marks = 0 : i64, io_logits = 0 : i64}} {
  func.func @other(%x : tensor<?x4xf32>) -> tensor<?x4xf32> {
    %y = ds4.add %x, %x : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
    func.return %y : tensor<?x4xf32>
  }
}
// RUN: ds4c-opt -p 'lower-to-kernels'
// -----
// A read of a version that an earlier op replaced.
// RUN: not ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=4},lower-to-kernels'
// CHECK: lower-to-kernels: @raw: expected ds4.read_rows to use the version in force, got one that an earlier op replaced; move the read before the write
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @step(%x : tensor<?x4xf32>, %at : !ds4.block) {
  %a = ds4.open : !ds4.state<@raw>
  %b = ds4.write %a, %x at %at : !ds4.state<@raw>, tensor<?x4xf32>
  %old = ds4.read_rows %a, %at {span = 7} : (!ds4.state<@raw>, !ds4.block) -> tensor<?x7x4xf32>
  ds4.close %b : !ds4.state<@raw>
  func.return
}
// -----
// Scores have no fixed width and cannot leave a kernel.
// RUN: not ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=4},lower-to-kernels'
// CHECK: lower-to-kernels: a result of ds4.index_scores: expected static widths, got [?, ?]; run the fusion that keeps it inside a kernel
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @step(%q : tensor<?x4xf32>, %w : tensor<?x1xf32>, %at : !ds4.block) -> tensor<?x3xi32> {
  %r = ds4.open : !ds4.state<@rows>
  %s = ds4.index_scores %q, %w, %r, %at {every = 4, scale = 0.5 : f64} : (tensor<?x4xf32>, tensor<?x1xf32>, !ds4.state<@rows>, !ds4.block) -> tensor<?x?xf32>
  %c = ds4.select_rows %s, %at {every = 4, top_k = 3} : (tensor<?x?xf32>, !ds4.block) -> tensor<?x3xi32>
  func.return %c : tensor<?x3xi32>
}
// -----
// A spec that the target has no kernel for.
// RUN: not ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=4},lower-to-kernels'
// CHECK: target: expected a width that is not 13, got 13
func.func @step(%x : tensor<?x13xf32>, %at : !ds4.block) -> tensor<?x13xf32> {
  %b = ds4.weight "bias" : tensor<4x13xf32>
  %y = ds4.add_position_bias %x, %b, %at : (tensor<?x13xf32>, tensor<4x13xf32>, !ds4.block) -> tensor<?x13xf32>
  func.return %y : tensor<?x13xf32>
}
// -----
// A module without a plan.
// RUN: not ds4c-opt -p 'lower-to-kernels'
// CHECK: lower-to-kernels: expected a planned module, got none; run plan-state first
func.func @step() {
  func.return
}
