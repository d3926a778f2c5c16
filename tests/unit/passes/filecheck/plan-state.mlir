// Capacities, live maps and offsets of a ring of every kind and of append rows.
// RUN: ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=4}'
// CHECK: builtin.module attributes {ds4.plan = {horizon = 10 : i64, context = 64 : i64, max_rows = 8 : i64, max_segments = 2 : i64, max_logit_rows = 4 : i64, page_tokens = 128 : i64, max_marks = 3 : i64, slot_bytes = 896 : i64, page_bytes = 512 : i64
// CHECK-NEXT: ds4.state @raw ring : tensor<18x4xf32> every 1 reads {{.*}} live affine_map<(d0) -> ((d0 + -7))> offset 0
// CHECK-NEXT: ds4.state @kv ring : tensor<18x8xf32> every 4 reads {{.*}} live affine_map<(d0) -> ({{.*}})> offset 320
// CHECK-NEXT: ds4.state @rows append : tensor<16x4xf32> every 4 reads {{.*}} live affine_map<(d0) -> (0)> offset 0
// CHECK-NEXT: ds4.state @history host : tensor<?x1xi32> every 1
// CHECK-NOT: live
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
ds4.state @kv ring : tensor<?x8xf32> every 4 reads affine_map<(d0) -> ((d0 floordiv 4) * 4 - 4, d0)>
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
ds4.state @history host : tensor<?x1xi32> every 1
// -----
// A module that is planned already, with the same options.
// RUN: ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=4}'
// UNCHANGED
builtin.module attributes {ds4.plan = {horizon = 10 : i64, context = 64 : i64, max_rows = 8 : i64, max_segments = 2 : i64, max_logit_rows = 4 : i64, page_tokens = 128 : i64, max_marks = 3 : i64, slot_bytes = 320 : i64, page_bytes = 0 : i64, workspace_bytes = 0 : i64, weights_bytes = 0 : i64, io_bytes = 0 : i64, io_tokens = 0 : i64, io_block = 0 : i64, io_page_tables = 0 : i64, io_logit_rows = 0 : i64, io_fork_args = 0 : i64, io_marks = 0 : i64, io_logits = 0 : i64}} {
  ds4.state @raw ring : tensor<18x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)> live affine_map<(d0) -> (d0 - 7)> offset 0
}
// -----
// A written capacity that is one row too small is refused with a session in which it fails.
// RUN: not ds4c-opt -p 'plan-state{horizon=10}'
// CHECK: plan-state: @kv has capacity 17, needs 18 for horizon 10: position 7, high water 18: the query at 7 wants the row of position 0, its slot holds position 17 (newer token)
ds4.state @kv ring : tensor<17x8xf32> every 4 reads affine_map<(d0) -> ((d0 floordiv 4) * 4 - 4, d0)>
// -----
// Pages must hold whole rows of every append state.
// RUN: not ds4c-opt -p 'plan-state{page-tokens=6}'
// CHECK: plan-state: page_tokens: expected a multiple of 4, got 6
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
// -----
// A horizon below zero.
// RUN: not ds4c-opt -p 'plan-state{horizon=-1}'
// CHECK: plan-state: horizon: expected >= 0, got -1
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
// -----
// A step without rows.
// RUN: not ds4c-opt -p 'plan-state{rows=0}'
// CHECK: plan-state: rows: expected >= 1, got 0
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
// -----
// An opaque state gets a plane for every token of the horizon, and two: before the target, and before that.
// RUN: ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=4}'
// CHECK: ds4.state @matrix opaque : tensor<12x16xf32> every 1 reads {{.*}} live affine_map<(d0) -> ((d0 + -1))> offset 0
ds4.state @matrix opaque : tensor<?x16xf32> every 1 reads affine_map<(d0) -> (d0 - 1, d0 - 1)>
// -----
// One plane less is refused with a session in which it fails.
// RUN: not ds4c-opt -p 'plan-state{horizon=10}'
// CHECK: plan-state: @matrix has capacity 11, needs 12 for horizon 10: position 1, high water 12: the query at 1 wants the row of position 0, its slot holds position 11 (newer token)
ds4.state @matrix opaque : tensor<11x16xf32> every 1 reads affine_map<(d0) -> (d0 - 1, d0 - 1)>
