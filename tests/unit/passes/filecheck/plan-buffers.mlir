// Addresses of arguments, weights, states, workspace and logits; a dead buffer is used again.
// RUN: ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=4},lower-to-kernels,plan-buffers'
// CHECK: workspace_bytes = 256 : i64, weights_bytes = 4416 : i64, io_bytes = 960 : i64, io_tokens = 0 : i64, io_block = 64 : i64, io_page_tables = 384 : i64, io_logit_rows = 448 : i64, io_fork_args = 576 : i64, io_marks = 640 : i64, io_logits = 896 : i64
// CHECK: ds4.weight "table" offset 4096
// CHECK: ds4.call_kernel "embed_{{.*}} offsets = ["io:0", "weights:4096", "workspace:0", "io:64"]
// CHECK: ds4.weight "w" offset 4288
// CHECK: ds4.call_kernel "linear_{{.*}} offsets = ["workspace:0", "weights:4288", "workspace:128", "io:64"]
// CHECK: ds4.call_kernel "write_{{.*}} offsets = ["states:0", "workspace:128", "io:64"]
// CHECK: ds4.weight "v" offset 4352
// CHECK: ds4.call_kernel "linear_{{.*}} offsets = ["workspace:128", "weights:4352", "workspace:0", "io:64"]
// CHECK: ds4.call_kernel "add_{{.*}} offsets = ["workspace:0", "workspace:128", "io:896", "io:64"]
ds4.state @logits host : tensor<?x4xf32> every 1
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @step(%tokens : tensor<?xi32>, %at : !ds4.block, %logit_rows : !ds4.rows) -> tensor<?x4xf32> {
  %t = ds4.weight "table" : tensor<9x4xf32>
  %e = ds4.embed %tokens, %t {copies = 1} : (tensor<?xi32>, tensor<9x4xf32>) -> tensor<?x1x4xf32>
  %w = ds4.weight "w" : tensor<4x1x4xf32>
  %y = ds4.linear %e, %w : (tensor<?x1x4xf32>, tensor<4x1x4xf32>) -> tensor<?x4xf32>
  %s = ds4.open : !ds4.state<@raw>
  %n = ds4.write %s, %y at %at : !ds4.state<@raw>, tensor<?x4xf32>
  ds4.close %n : !ds4.state<@raw>
  %v = ds4.weight "v" : tensor<4x4xf32>
  %z = ds4.linear %y, %v : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %o = ds4.add %z, %y : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return %o : tensor<?x4xf32>
}
// -----
// Buffers of 48 bytes stand 64 bytes apart.
// RUN: ds4c-opt -p 'plan-state{horizon=10 context=64 rows=3 segments=1 logit-rows=1},lower-to-kernels,plan-buffers'
// CHECK: ds4.call_kernel "embed_{{.*}} offsets = ["io:0", "weights:4096", "workspace:0", "io:64"]
// CHECK: ds4.call_kernel "linear_{{.*}} offsets = ["workspace:0", "weights:4288", "workspace:64", "io:64"]
ds4.state @logits host : tensor<?x4xf32> every 1
func.func @step(%tokens : tensor<?xi32>, %at : !ds4.block, %logit_rows : !ds4.rows) -> tensor<?x4xf32> {
  %t = ds4.weight "table" : tensor<9x4xf32>
  %e = ds4.embed %tokens, %t {copies = 1} : (tensor<?xi32>, tensor<9x4xf32>) -> tensor<?x1x4xf32>
  %w = ds4.weight "w" : tensor<4x1x4xf32>
  %y = ds4.linear %e, %w : (tensor<?x1x4xf32>, tensor<4x1x4xf32>) -> tensor<?x4xf32>
  %o = ds4.add %y, %y : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return %o : tensor<?x4xf32>
}
// -----
// The io arena where every buffer ends at a unit: 16 tokens, 32 numbers of rows with logits.
// RUN: ds4c-opt -p 'plan-state{horizon=10 context=64 rows=16 segments=2 logit-rows=16},plan-buffers'
// CHECK: io_bytes = 1088 : i64, io_tokens = 0 : i64, io_block = 64 : i64, io_page_tables = 384 : i64, io_logit_rows = 448 : i64, io_fork_args = 576 : i64, io_marks = 640 : i64, io_logits = 832 : i64
ds4.state @logits host : tensor<?x4xf32> every 1
// -----
// Arguments that the runtime does not fill in.
// RUN: not ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=4},lower-to-kernels,plan-buffers'
// CHECK: expected a value with an address, got argument strange; arguments must be one of tokens, at, logit_rows, args, marks
ds4.state @logits host : tensor<?x4xf32> every 1
func.func @step(%strange : tensor<?x4xf32>, %at : !ds4.block) -> tensor<?x4xf32> {
  %y = ds4.add %strange, %strange : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return %y : tensor<?x4xf32>
}
// -----
// A module whose logits have no declared width.
// RUN: not ds4c-opt -p 'plan-state{horizon=10 context=64 rows=8 segments=2 logit-rows=4},plan-buffers'
// CHECK: plan-buffers: expected a host state @logits, got none
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
// -----
// A module without a plan.
// RUN: not ds4c-opt -p 'plan-buffers'
// CHECK: plan-buffers: expected a planned module, got none; run plan-state first
ds4.state @logits host : tensor<?x4xf32> every 1
// -----
// A module that is planned already and calls nothing.
// RUN: ds4c-opt -p 'plan-buffers'
// UNCHANGED
builtin.module attributes {ds4.plan = {horizon = 10 : i64, context = 64 : i64, max_rows = 8 : i64, max_segments = 2 : i64, max_logit_rows = 4 : i64, page_tokens = 128 : i64, max_marks = 3 : i64, slot_bytes = 0 : i64, page_bytes = 0 : i64, workspace_bytes = 0 : i64, weights_bytes = 4096 : i64, io_bytes = 896 : i64, io_tokens = 0 : i64, io_block = 64 : i64, io_page_tables = 384 : i64, io_logit_rows = 448 : i64, io_fork_args = 576 : i64, io_marks = 640 : i64, io_logits = 832 : i64}} {
  ds4.state @logits host : tensor<?x4xf32> every 1
}
