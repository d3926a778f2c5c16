// A ring of each phase and an opaque state, as plan-state derived them.
// RUN: ds4c-opt -p 'prove-rewind'
// UNCHANGED
builtin.module attributes {ds4.plan = {horizon = 10 : i64, context = 64 : i64, max_rows = 8 : i64, max_segments = 2 : i64, max_logit_rows = 4 : i64, page_tokens = 128 : i64, max_marks = 3 : i64, slot_bytes = 3904 : i64, page_bytes = 0 : i64, workspace_bytes = 0 : i64, weights_bytes = 0 : i64, io_bytes = 0 : i64, io_tokens = 0 : i64, io_block = 0 : i64, io_page_tables = 0 : i64, io_logit_rows = 0 : i64, io_fork_args = 0 : i64, io_marks = 0 : i64, io_logits = 0 : i64}} {
  ds4.state @raw ring : tensor<18x4xf32> every 1 reads affine_map<(d0) -> ((d0 + -7), d0)> live affine_map<(d0) -> ((d0 + -7))> offset 0
  ds4.state @kv ring : tensor<18x8xf32> every 4 reads affine_map<(d0) -> ((((d0 floordiv 4) * 4) + -4), d0)> live affine_map<(d0) -> (((((((d0 floordiv 4) * 4) + 3) floordiv 4) * 4) + -4))> offset 320
  ds4.state @heavy ring : tensor<138x4xf32> every 128 reads affine_map<(d0) -> (((d0 floordiv 128) * 128), d0)> live affine_map<(d0) -> ((((((d0 floordiv 128) * 128) + 127) floordiv 128) * 128))> offset 896
  ds4.state @matrix opaque : tensor<12x16xf32> every 1 reads affine_map<(d0) -> ((d0 + -1), (d0 + -1))> live affine_map<(d0) -> ((d0 + -1))> offset 3136
}
// -----
// A ring one row too small for the horizon of the plan, with a session in which it fails.
// RUN: not ds4c-opt -p 'prove-rewind'
// CHECK: prove-rewind: @kv: expected 17 rows to serve every rewind of 10 tokens, got position 7, high water 18: the query at 7 wants the row of position 0, its slot holds position 17 (newer token)
builtin.module attributes {ds4.plan = {horizon = 10 : i64, context = 64 : i64, max_rows = 8 : i64, max_segments = 2 : i64, max_logit_rows = 4 : i64, page_tokens = 128 : i64, max_marks = 3 : i64, slot_bytes = 320 : i64, page_bytes = 0 : i64, workspace_bytes = 0 : i64, weights_bytes = 0 : i64, io_bytes = 0 : i64, io_tokens = 0 : i64, io_block = 0 : i64, io_page_tables = 0 : i64, io_logit_rows = 0 : i64, io_fork_args = 0 : i64, io_marks = 0 : i64, io_logits = 0 : i64}} {
  ds4.state @kv ring : tensor<17x8xf32> every 4 reads affine_map<(d0) -> ((d0 floordiv 4) * 4 - 4, d0)> live affine_map<(d0) -> ((d0 floordiv 4) * 4 - 4)> offset 0
}
// -----
// A module without a plan.
// RUN: not ds4c-opt -p 'prove-rewind'
// CHECK: prove-rewind: expected a planned module, got none; run plan-state first
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
