// No read set.
// MESSAGE: ds4.state @a: expected a read set for kind ring, got none
ds4.state @a ring : tensor<?x4xf32> every 1
// -----
// No read set of opaque.
// MESSAGE: expected a read set for kind opaque, got none
ds4.state @a opaque : tensor<?x4xf32> every 1
// -----
// Every 0.
// MESSAGE: ds4.state @a: expected every >= 1, got 0
ds4.state @a ring : tensor<?x4xf32> every 0 reads affine_map<(d0) -> (d0 - 7, d0)>
// -----
// Every -4.
// MESSAGE: ds4.state @a: expected every >= 1, got -4
ds4.state @a append : tensor<?x4xf32> every -4 reads affine_map<(d0) -> (d0 - 7, d0)>
// -----
// One result.
// MESSAGE: ds4.state @a: expected reads to be a map (position) -> (first, last), got (d0) -> (d0)
ds4.state @a ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0)>
// -----
// Two positions.
// MESSAGE: expected reads to be a map (position) -> (first, last), got (d0, d1) -> (d0, d1)
ds4.state @a ring : tensor<?x4xf32> every 1 reads affine_map<(d0, d1) -> (d0, d1)>
// -----
// A symbol.
// MESSAGE: expected reads to be a map (position) -> (first, last), got
ds4.state @a ring : tensor<?x4xf32> every 1 reads affine_map<(d0)[s0] -> (d0 - s0, d0)>
// -----
// A row without width.
// MESSAGE: ds4.state @a: expected a row tensor<?xW..>, got [?]
ds4.state @a ring : tensor<?xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
// -----
// A row of unknown width.
// MESSAGE: expected a row tensor<?xW..>, got [?, ?]
ds4.state @a ring : tensor<?x?xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
// -----
// Capacity 0.
// MESSAGE: ds4.state @a: expected a capacity >= 1, got 0
ds4.state @a ring : tensor<0x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
// -----
// Undeclared state.
// MESSAGE: ds4.open: expected a declared state, got @gone; declare it with ds4.state
func.func @f() {
  %s = ds4.open : !ds4.state<@gone>
  func.return
}
// -----
// A function is no state.
// MESSAGE: ds4.open: expected a declared state, got @f
func.func @f() {
  %s = ds4.open : !ds4.state<@f>
  func.return
}
// -----
// Written twice.
// MESSAGE: ds4.open: version of @raw: expected at most one op to replace it, got 2 (ds4.write, ds4.write)
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>) {
  %s = ds4.open : !ds4.state<@raw>
  %x = ds4.write %s, %t4 at %at : !ds4.state<@raw>, tensor<?x4xf32>
  %y = ds4.write %s, %t4 at %at : !ds4.state<@raw>, tensor<?x4xf32>
  func.return
}
// -----
// Written and closed.
// MESSAGE: ds4.open: version of @raw: expected at most one op to replace it, got 2 (
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>) {
  %s = ds4.open : !ds4.state<@raw>
  %x = ds4.write %s, %t4 at %at : !ds4.state<@raw>, tensor<?x4xf32>
  ds4.close %s : !ds4.state<@raw>
  func.return
}
// -----
// A write's version closed twice.
// MESSAGE: ds4.write: version of @raw: expected at most one op to replace it, got 2 (ds4.close, ds4.close)
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>) {
  %s = ds4.open : !ds4.state<@raw>
  %x = ds4.write %s, %t4 at %at : !ds4.state<@raw>, tensor<?x4xf32>
  ds4.close %x : !ds4.state<@raw>
  ds4.close %x : !ds4.state<@raw>
  func.return
}
// -----
// Ring write of append rows.
// MESSAGE: ds4.write: @rows: expected a state of kind ring or opaque, got append
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>) {
  %a = ds4.open : !ds4.state<@rows>
  %x = ds4.write %a, %t4 at %at : !ds4.state<@rows>, tensor<?x4xf32>
  func.return
}
// -----
// Append to a ring.
// MESSAGE: ds4.append: @raw: expected a state of kind append, got ring
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @f(%win : !ds4.block, %t4 : tensor<?x4xf32>) {
  %s = ds4.open : !ds4.state<@raw>
  %x = ds4.append %s, %t4 at %win : !ds4.state<@raw>, tensor<?x4xf32>
  func.return
}
// -----
// Marks of append rows.
// MESSAGE: ds4.snapshot_rows: @rows: expected a state of kind ring or opaque, got append
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>, %marks : !ds4.marks) {
  %a = ds4.open : !ds4.state<@rows>
  ds4.snapshot_rows %a, %t4 at %at marks %marks : !ds4.state<@rows>, tensor<?x4xf32>
  func.return
}
// -----
// Ring read of append rows.
// MESSAGE: ds4.read_rows: @rows: expected a state of kind ring or opaque, got append
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @f(%at : !ds4.block) {
  %a = ds4.open : !ds4.state<@rows>
  %x = ds4.read_rows %a, %at {span = 7} : (!ds4.state<@rows>, !ds4.block) -> tensor<?x7x4xf32>
  func.return
}
// -----
// Scores of a ring.
// MESSAGE: ds4.index_scores: @raw: expected a state of kind append, got ring
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>, %t1 : tensor<?x1xf32>) {
  %s = ds4.open : !ds4.state<@raw>
  %x = ds4.index_scores %t4, %t1, %s, %at {every = 4, scale = 1.0 : f64} : (tensor<?x4xf32>, tensor<?x1xf32>, !ds4.state<@raw>, !ds4.block) -> tensor<?x?xf32>
  func.return
}
// -----
// A value used above its op.
// MESSAGE: ds4.add: operand 0: expected a value made above it in @f, got one made below
func.func @f(%t4 : tensor<?x4xf32>) {
  %x = ds4.add %y, %t4 : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %y = ds4.add %t4, %t4 : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Embed.
// MESSAGE: ds4.embed: result: expected [2, 4], got [4]
func.func @f(%tok : tensor<?xi32>, %w44 : tensor<4x4xf32>) {
  %r = ds4.embed %tok, %w44 {copies = 2} : (tensor<?xi32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Take_rows.
// MESSAGE: ds4.take_rows: result: expected [4], got [3]
func.func @f(%list : !ds4.rows, %t4 : tensor<?x4xf32>) {
  %r = ds4.take_rows %t4, %list {} : (tensor<?x4xf32>, !ds4.rows) -> tensor<?x3xf32>
  func.return
}
// -----
// Linear weight.
// MESSAGE: ds4.linear: w: expected [4, 3], got [4, 4]
func.func @f(%t3 : tensor<?x3xf32>, %w44 : tensor<4x4xf32>) {
  %r = ds4.linear %t3, %w44 {} : (tensor<?x3xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Linear result.
// MESSAGE: ds4.linear: result: expected [3], got [4]
func.func @f(%t4 : tensor<?x4xf32>, %w34 : tensor<3x4xf32>) {
  %r = ds4.linear %t4, %w34 {} : (tensor<?x4xf32>, tensor<3x4xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Multi_linear weight.
// MESSAGE: ds4.multi_linear: w: expected [4, 4], got [4, 3]
func.func @f(%t4 : tensor<?x4xf32>, %w44 : tensor<4x4xf32>, %w43 : tensor<4x3xf32>) {
  %r, %q = ds4.multi_linear %t4, %w44, %w43 {} : (tensor<?x4xf32>, tensor<4x4xf32>, tensor<4x3xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>)
  func.return
}
// -----
// Multi_linear result.
// MESSAGE: ds4.multi_linear: result: expected [3], got [4]
func.func @f(%t4 : tensor<?x4xf32>, %w34 : tensor<3x4xf32>, %w44 : tensor<4x4xf32>) {
  %r, %q = ds4.multi_linear %t4, %w44, %w34 {} : (tensor<?x4xf32>, tensor<4x4xf32>, tensor<3x4xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>)
  func.return
}
// -----
// Multi_linear count.
// MESSAGE: ds4.multi_linear: expected 2 results, got 1
func.func @f(%t4 : tensor<?x4xf32>, %w44 : tensor<4x4xf32>) {
  %r = ds4.multi_linear %t4, %w44, %w44 {} : (tensor<?x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Grouped_linear weight.
// MESSAGE: ds4.grouped_linear: w: expected [4, 4], got [4, 3]
func.func @f(%t8 : tensor<?x8xf32>, %w43 : tensor<4x3xf32>) {
  %r = ds4.grouped_linear %t8, %w43 {groups = 2} : (tensor<?x8xf32>, tensor<4x3xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Grouped_linear result.
// MESSAGE: ds4.grouped_linear: result: expected [4], got [3]
func.func @f(%t8 : tensor<?x8xf32>, %w44 : tensor<4x4xf32>) {
  %r = ds4.grouped_linear %t8, %w44 {groups = 2} : (tensor<?x8xf32>, tensor<4x4xf32>) -> tensor<?x3xf32>
  func.return
}
// -----
// Gated_linear w1.
// MESSAGE: ds4.gated_linear: w1: expected [4, 4], got [4, 3]
func.func @f(%t4 : tensor<?x4xf32>, %w43 : tensor<4x3xf32>) {
  %r = ds4.gated_linear %t4, %w43, %w43 {clamp = 1.0 : f64} : (tensor<?x4xf32>, tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Gated_linear w3.
// MESSAGE: ds4.gated_linear: w3: expected [4, 4], got [3, 4]
func.func @f(%t4 : tensor<?x4xf32>, %w34 : tensor<3x4xf32>, %w44 : tensor<4x4xf32>) {
  %r = ds4.gated_linear %t4, %w44, %w34 {clamp = 1.0 : f64} : (tensor<?x4xf32>, tensor<4x4xf32>, tensor<3x4xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Gated_linear result.
// MESSAGE: ds4.gated_linear: result: expected [3], got [4]
func.func @f(%t4 : tensor<?x4xf32>, %w34 : tensor<3x4xf32>) {
  %r = ds4.gated_linear %t4, %w34, %w34 {clamp = 1.0 : f64} : (tensor<?x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Swiglu up.
// MESSAGE: ds4.swiglu: up: expected [4], got [3]
func.func @f(%t3 : tensor<?x3xf32>, %t4 : tensor<?x4xf32>) {
  %r = ds4.swiglu %t4, %t3 {clamp = 1.0 : f64} : (tensor<?x4xf32>, tensor<?x3xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Swiglu result.
// MESSAGE: ds4.swiglu: result: expected [4], got [3]
func.func @f(%t4 : tensor<?x4xf32>) {
  %r = ds4.swiglu %t4, %t4 {clamp = 1.0 : f64} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x3xf32>
  func.return
}
// -----
// Rms_norm gain.
// MESSAGE: ds4.rms_norm: gain: expected [4], got [3]
func.func @f(%t4 : tensor<?x4xf32>, %g3 : tensor<3xf32>) {
  %r = ds4.rms_norm %t4, %g3 {eps = 1.0e-6 : f64} : (tensor<?x4xf32>, tensor<3xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Rms_norm result.
// MESSAGE: ds4.rms_norm: result: expected [4], got [3]
func.func @f(%t4 : tensor<?x4xf32>, %g4 : tensor<4xf32>) {
  %r = ds4.rms_norm %t4, %g4 {eps = 1.0e-6 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x3xf32>
  func.return
}
// -----
// Head_norm heads.
// MESSAGE: ds4.head_norm: expected a width divisible by 3 heads, got 4
func.func @f(%t4 : tensor<?x4xf32>) {
  %r = ds4.head_norm %t4 {heads = 3, eps = 1.0e-6 : f64} : (tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Head_norm result.
// MESSAGE: ds4.head_norm: result: expected [4], got [3]
func.func @f(%t4 : tensor<?x4xf32>) {
  %r = ds4.head_norm %t4 {heads = 2, eps = 1.0e-6 : f64} : (tensor<?x4xf32>) -> tensor<?x3xf32>
  func.return
}
// -----
// Rope_table fine.
// MESSAGE: ds4.rope_table: fine: expected [2, 1], got [2, 2]
func.func @f(%at : !ds4.block, %co : tensor<7x2x1xf64>, %fi2 : tensor<9x2x2xf64>) {
  %r = ds4.rope_table %at, %co, %fi2 {} : (!ds4.block, tensor<7x2x1xf64>, tensor<9x2x2xf64>) -> tensor<?x2x1xf32>
  func.return
}
// -----
// Rope_table result.
// MESSAGE: ds4.rope_table: result: expected [2, 1], got [2, 3]
func.func @f(%at : !ds4.block, %co : tensor<7x2x1xf64>, %fi : tensor<9x2x1xf64>) {
  %r = ds4.rope_table %at, %co, %fi {} : (!ds4.block, tensor<7x2x1xf64>, tensor<9x2x1xf64>) -> tensor<?x2x3xf32>
  func.return
}
// -----
// Rope width.
// MESSAGE: ds4.rope: expected a head width of at least 6, got 4
func.func @f(%t4 : tensor<?x4xf32>, %rt2 : tensor<?x2x3xf32>) {
  %r = ds4.rope %t4, %rt2 {heads = 1, inverse = 0} : (tensor<?x4xf32>, tensor<?x2x3xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Rope heads.
// MESSAGE: ds4.rope: expected a head width of at least 2, got 1
func.func @f(%t4 : tensor<?x4xf32>, %rt : tensor<?x2x1xf32>) {
  %r = ds4.rope %t4, %rt {heads = 4, inverse = 0} : (tensor<?x4xf32>, tensor<?x2x1xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Rope result.
// MESSAGE: ds4.rope: result: expected [4], got [3]
func.func @f(%t4 : tensor<?x4xf32>, %rt : tensor<?x2x1xf32>) {
  %r = ds4.rope %t4, %rt {heads = 1, inverse = 0} : (tensor<?x4xf32>, tensor<?x2x1xf32>) -> tensor<?x3xf32>
  func.return
}
// -----
// Norm_rope gain.
// MESSAGE: ds4.norm_rope: gain: expected [4], got [3]
func.func @f(%t4 : tensor<?x4xf32>, %g3 : tensor<3xf32>, %rt : tensor<?x2x1xf32>) {
  %r = ds4.norm_rope %t4 gain %g3 : tensor<3xf32> table %rt {heads = 1, eps = 1.0e-6 : f64} : tensor<?x4xf32>, tensor<?x2x1xf32> -> tensor<?x4xf32>
  func.return
}
// -----
// Norm_rope result.
// MESSAGE: ds4.norm_rope: result: expected [4], got [3]
func.func @f(%t4 : tensor<?x4xf32>, %rt : tensor<?x2x1xf32>) {
  %r = ds4.norm_rope %t4 table %rt {heads = 1, eps = 1.0e-6 : f64} : tensor<?x4xf32>, tensor<?x2x1xf32> -> tensor<?x3xf32>
  func.return
}
// -----
// Add.
// MESSAGE: ds4.add: y: expected [4], got [3]
func.func @f(%t3 : tensor<?x3xf32>, %t4 : tensor<?x4xf32>) {
  %r = ds4.add %t4, %t3 {} : (tensor<?x4xf32>, tensor<?x3xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Add result.
// MESSAGE: ds4.add: result: expected [4], got [3]
func.func @f(%t4 : tensor<?x4xf32>) {
  %r = ds4.add %t4, %t4 {} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x3xf32>
  func.return
}
// -----
// Position bias.
// MESSAGE: ds4.add_position_bias: bias: expected [4, 4], got [4, 3]
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>, %w43 : tensor<4x3xf32>) {
  %r = ds4.add_position_bias %t4, %w43, %at {} : (tensor<?x4xf32>, tensor<4x3xf32>, !ds4.block) -> tensor<?x4xf32>
  func.return
}
// -----
// Position bias result.
// MESSAGE: ds4.add_position_bias: result: expected [4], got [3]
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>, %w44 : tensor<4x4xf32>) {
  %r = ds4.add_position_bias %t4, %w44, %at {} : (tensor<?x4xf32>, tensor<4x4xf32>, !ds4.block) -> tensor<?x3xf32>
  func.return
}
// -----
// Hc_mix fn.
// MESSAGE: ds4.hc_mix: fn: expected [8, 8], got [4, 4]
func.func @f(%t24 : tensor<?x2x4xf32>, %w44 : tensor<4x4xf32>, %g3 : tensor<3xf32>, %g8 : tensor<8xf32>) {
  %r, %q, %m = ds4.hc_mix %t24, %w44, %g8, %g3 {iters = 2, eps = 1.0e-6 : f64, norm_eps = 1.0e-6 : f64} : (tensor<?x2x4xf32>, tensor<4x4xf32>, tensor<8xf32>, tensor<3xf32>) -> (tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>)
  func.return
}
// -----
// Hc_mix base.
// MESSAGE: ds4.hc_mix: base: expected [8], got [4]
func.func @f(%t24 : tensor<?x2x4xf32>, %g4 : tensor<4xf32>, %g3 : tensor<3xf32>, %fn : tensor<8x8xf32>) {
  %r, %q, %m = ds4.hc_mix %t24, %fn, %g4, %g3 {iters = 2, eps = 1.0e-6 : f64, norm_eps = 1.0e-6 : f64} : (tensor<?x2x4xf32>, tensor<8x8xf32>, tensor<4xf32>, tensor<3xf32>) -> (tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>)
  func.return
}
// -----
// Hc_mix scale.
// MESSAGE: ds4.hc_mix: scale: expected [3], got [2]
func.func @f(%t24 : tensor<?x2x4xf32>, %g2 : tensor<2xf32>, %g8 : tensor<8xf32>, %fn : tensor<8x8xf32>) {
  %r, %q, %m = ds4.hc_mix %t24, %fn, %g8, %g2 {iters = 2, eps = 1.0e-6 : f64, norm_eps = 1.0e-6 : f64} : (tensor<?x2x4xf32>, tensor<8x8xf32>, tensor<8xf32>, tensor<2xf32>) -> (tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>)
  func.return
}
// -----
// Hc_mix pre.
// MESSAGE: ds4.hc_mix: pre: expected [2], got [3]
func.func @f(%t24 : tensor<?x2x4xf32>, %g3 : tensor<3xf32>, %g8 : tensor<8xf32>, %fn : tensor<8x8xf32>) {
  %r, %q, %m = ds4.hc_mix %t24, %fn, %g8, %g3 {iters = 2, eps = 1.0e-6 : f64, norm_eps = 1.0e-6 : f64} : (tensor<?x2x4xf32>, tensor<8x8xf32>, tensor<8xf32>, tensor<3xf32>) -> (tensor<?x3xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>)
  func.return
}
// -----
// Hc_mix post.
// MESSAGE: ds4.hc_mix: post: expected [2], got [3]
func.func @f(%t24 : tensor<?x2x4xf32>, %g3 : tensor<3xf32>, %g8 : tensor<8xf32>, %fn : tensor<8x8xf32>) {
  %r, %q, %m = ds4.hc_mix %t24, %fn, %g8, %g3 {iters = 2, eps = 1.0e-6 : f64, norm_eps = 1.0e-6 : f64} : (tensor<?x2x4xf32>, tensor<8x8xf32>, tensor<8xf32>, tensor<3xf32>) -> (tensor<?x2xf32>, tensor<?x3xf32>, tensor<?x2x2xf32>)
  func.return
}
// -----
// Hc_mix mix.
// MESSAGE: ds4.hc_mix: mix: expected [2, 2], got [2, 4]
func.func @f(%t24 : tensor<?x2x4xf32>, %g3 : tensor<3xf32>, %g8 : tensor<8xf32>, %fn : tensor<8x8xf32>) {
  %r, %q, %m = ds4.hc_mix %t24, %fn, %g8, %g3 {iters = 2, eps = 1.0e-6 : f64, norm_eps = 1.0e-6 : f64} : (tensor<?x2x4xf32>, tensor<8x8xf32>, tensor<8xf32>, tensor<3xf32>) -> (tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x2x4xf32>)
  func.return
}
// -----
// Hc_pre pre.
// MESSAGE: ds4.hc_pre: pre: expected [2], got [3]
func.func @f(%t3 : tensor<?x3xf32>, %t24 : tensor<?x2x4xf32>) {
  %r = ds4.hc_pre %t24, %t3 {} : (tensor<?x2x4xf32>, tensor<?x3xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Hc_pre result.
// MESSAGE: ds4.hc_pre: result: expected [4], got [3]
func.func @f(%t2 : tensor<?x2xf32>, %t24 : tensor<?x2x4xf32>) {
  %r = ds4.hc_pre %t24, %t2 {} : (tensor<?x2x4xf32>, tensor<?x2xf32>) -> tensor<?x3xf32>
  func.return
}
// -----
// Hc_enter fn.
// MESSAGE: ds4.hc_enter: fn: expected [8, 8], got [4, 4]
func.func @f(%t24 : tensor<?x2x4xf32>, %w44 : tensor<4x4xf32>, %g4 : tensor<4xf32>, %g3 : tensor<3xf32>, %g8 : tensor<8xf32>) {
  %r, %q, %m = ds4.hc_enter %t24, %w44, %g8, %g3, %g4 {iters = 2, eps = 1.0e-6 : f64, norm_eps = 1.0e-6 : f64} : (tensor<?x2x4xf32>, tensor<4x4xf32>, tensor<8xf32>, tensor<3xf32>, tensor<4xf32>) -> (tensor<?x4xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>)
  func.return
}
// -----
// Hc_enter gain.
// MESSAGE: ds4.hc_enter: gain: expected [4], got [3]
func.func @f(%t24 : tensor<?x2x4xf32>, %g3 : tensor<3xf32>, %g8 : tensor<8xf32>, %fn : tensor<8x8xf32>) {
  %r, %q, %m = ds4.hc_enter %t24, %fn, %g8, %g3, %g3 {iters = 2, eps = 1.0e-6 : f64, norm_eps = 1.0e-6 : f64} : (tensor<?x2x4xf32>, tensor<8x8xf32>, tensor<8xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<?x4xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>)
  func.return
}
// -----
// Hc_enter result.
// MESSAGE: ds4.hc_enter: result: expected [4], got [3]
func.func @f(%t24 : tensor<?x2x4xf32>, %g4 : tensor<4xf32>, %g3 : tensor<3xf32>, %g8 : tensor<8xf32>, %fn : tensor<8x8xf32>) {
  %r, %q, %m = ds4.hc_enter %t24, %fn, %g8, %g3, %g4 {iters = 2, eps = 1.0e-6 : f64, norm_eps = 1.0e-6 : f64} : (tensor<?x2x4xf32>, tensor<8x8xf32>, tensor<8xf32>, tensor<3xf32>, tensor<4xf32>) -> (tensor<?x3xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>)
  func.return
}
// -----
// Hc_post y.
// MESSAGE: ds4.hc_post: y: expected [4], got [3]
func.func @f(%t3 : tensor<?x3xf32>, %t2 : tensor<?x2xf32>, %t24 : tensor<?x2x4xf32>, %t22 : tensor<?x2x2xf32>) {
  %r = ds4.hc_post %t24, %t3, %t2, %t22 {} : (tensor<?x2x4xf32>, tensor<?x3xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>) -> tensor<?x2x4xf32>
  func.return
}
// -----
// Hc_post post.
// MESSAGE: ds4.hc_post: post: expected [2], got [3]
func.func @f(%t3 : tensor<?x3xf32>, %t4 : tensor<?x4xf32>, %t24 : tensor<?x2x4xf32>, %t22 : tensor<?x2x2xf32>) {
  %r = ds4.hc_post %t24, %t4, %t3, %t22 {} : (tensor<?x2x4xf32>, tensor<?x4xf32>, tensor<?x3xf32>, tensor<?x2x2xf32>) -> tensor<?x2x4xf32>
  func.return
}
// -----
// Hc_post mix.
// MESSAGE: ds4.hc_post: mix: expected [2, 2], got [2, 4]
func.func @f(%t4 : tensor<?x4xf32>, %t2 : tensor<?x2xf32>, %t24 : tensor<?x2x4xf32>) {
  %r = ds4.hc_post %t24, %t4, %t2, %t24 {} : (tensor<?x2x4xf32>, tensor<?x4xf32>, tensor<?x2xf32>, tensor<?x2x4xf32>) -> tensor<?x2x4xf32>
  func.return
}
// -----
// Hc_post result.
// MESSAGE: ds4.hc_post: result: expected [2, 4], got [2, 2]
func.func @f(%t4 : tensor<?x4xf32>, %t2 : tensor<?x2xf32>, %t24 : tensor<?x2x4xf32>, %t22 : tensor<?x2x2xf32>) {
  %r = ds4.hc_post %t24, %t4, %t2, %t22 {} : (tensor<?x2x4xf32>, tensor<?x4xf32>, tensor<?x2xf32>, tensor<?x2x2xf32>) -> tensor<?x2x2xf32>
  func.return
}
// -----
// Hc_collapse fn.
// MESSAGE: ds4.hc_collapse: fn: expected [2, 8], got [8, 8]
func.func @f(%t24 : tensor<?x2x4xf32>, %g2 : tensor<2xf32>, %fn : tensor<8x8xf32>, %s1 : tensor<1xf32>) {
  %r = ds4.hc_collapse %t24, %fn, %g2, %s1 {eps = 1.0e-6 : f64, norm_eps = 1.0e-6 : f64} : (tensor<?x2x4xf32>, tensor<8x8xf32>, tensor<2xf32>, tensor<1xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Hc_collapse base.
// MESSAGE: ds4.hc_collapse: base: expected [2], got [3]
func.func @f(%t24 : tensor<?x2x4xf32>, %g3 : tensor<3xf32>, %head : tensor<2x8xf32>, %s1 : tensor<1xf32>) {
  %r = ds4.hc_collapse %t24, %head, %g3, %s1 {eps = 1.0e-6 : f64, norm_eps = 1.0e-6 : f64} : (tensor<?x2x4xf32>, tensor<2x8xf32>, tensor<3xf32>, tensor<1xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Hc_collapse scale.
// MESSAGE: ds4.hc_collapse: scale: expected [1], got [2]
func.func @f(%t24 : tensor<?x2x4xf32>, %g2 : tensor<2xf32>, %head : tensor<2x8xf32>) {
  %r = ds4.hc_collapse %t24, %head, %g2, %g2 {eps = 1.0e-6 : f64, norm_eps = 1.0e-6 : f64} : (tensor<?x2x4xf32>, tensor<2x8xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Hc_collapse result.
// MESSAGE: ds4.hc_collapse: result: expected [4], got [3]
func.func @f(%t24 : tensor<?x2x4xf32>, %g2 : tensor<2xf32>, %head : tensor<2x8xf32>, %s1 : tensor<1xf32>) {
  %r = ds4.hc_collapse %t24, %head, %g2, %s1 {eps = 1.0e-6 : f64, norm_eps = 1.0e-6 : f64} : (tensor<?x2x4xf32>, tensor<2x8xf32>, tensor<2xf32>, tensor<1xf32>) -> tensor<?x3xf32>
  func.return
}
// -----
// Route_top bias.
// MESSAGE: ds4.route_top: bias: expected [4], got [3]
func.func @f(%t4 : tensor<?x4xf32>, %g3 : tensor<3xf32>) {
  %r, %q = ds4.route_top %t4, %g3 {top_k = 2, scale = 1.0 : f64} : (tensor<?x4xf32>, tensor<3xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  func.return
}
// -----
// Route_top experts.
// MESSAGE: ds4.route_top: experts: expected [3], got [2]
func.func @f(%t4 : tensor<?x4xf32>, %g4 : tensor<4xf32>) {
  %r, %q = ds4.route_top %t4, %g4 {top_k = 3, scale = 1.0 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> (tensor<?x2xi32>, tensor<?x3xf32>)
  func.return
}
// -----
// Route_top weights.
// MESSAGE: ds4.route_top: weights: expected [2], got [3]
func.func @f(%t4 : tensor<?x4xf32>, %g4 : tensor<4xf32>) {
  %r, %q = ds4.route_top %t4, %g4 {top_k = 2, scale = 1.0 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> (tensor<?x2xi32>, tensor<?x3xf32>)
  func.return
}
// -----
// Route_hash experts.
// MESSAGE: ds4.route_hash: experts: expected [2], got [3]
func.func @f(%t4 : tensor<?x4xf32>, %tok : tensor<?xi32>, %tab : tensor<9x2xi32>) {
  %r, %q = ds4.route_hash %t4, %tok, %tab {scale = 1.0 : f64} : (tensor<?x4xf32>, tensor<?xi32>, tensor<9x2xi32>) -> (tensor<?x3xi32>, tensor<?x2xf32>)
  func.return
}
// -----
// Route_hash weights.
// MESSAGE: ds4.route_hash: weights: expected [2], got [3]
func.func @f(%t4 : tensor<?x4xf32>, %tok : tensor<?xi32>, %tab : tensor<9x2xi32>) {
  %r, %q = ds4.route_hash %t4, %tok, %tab {scale = 1.0 : f64} : (tensor<?x4xf32>, tensor<?xi32>, tensor<9x2xi32>) -> (tensor<?x2xi32>, tensor<?x3xf32>)
  func.return
}
// -----
// Moe x.
// MESSAGE: ds4.moe_experts: x: expected [4], got [3]
func.func @f(%t3 : tensor<?x3xf32>, %t2 : tensor<?x2xf32>, %k2 : tensor<?x2xi32>, %e : tensor<5x3x4xf32>, %d : tensor<5x4x3xf32>) {
  %r = ds4.moe_experts %t3, %k2, %t2, %e, %e, %d {clamp = 1.0 : f64} : (tensor<?x3xf32>, tensor<?x2xi32>, tensor<?x2xf32>, tensor<5x3x4xf32>, tensor<5x3x4xf32>, tensor<5x4x3xf32>) -> tensor<?x3xf32>
  func.return
}
// -----
// Moe weights.
// MESSAGE: ds4.moe_experts: weights: expected [2], got [3]
func.func @f(%t3 : tensor<?x3xf32>, %t4 : tensor<?x4xf32>, %k2 : tensor<?x2xi32>, %e : tensor<5x3x4xf32>, %d : tensor<5x4x3xf32>) {
  %r = ds4.moe_experts %t4, %k2, %t3, %e, %e, %d {clamp = 1.0 : f64} : (tensor<?x4xf32>, tensor<?x2xi32>, tensor<?x3xf32>, tensor<5x3x4xf32>, tensor<5x3x4xf32>, tensor<5x4x3xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Moe w3.
// MESSAGE: ds4.moe_experts: w3: expected [5, 3, 4], got [5, 4, 3]
func.func @f(%t4 : tensor<?x4xf32>, %t2 : tensor<?x2xf32>, %k2 : tensor<?x2xi32>, %e : tensor<5x3x4xf32>, %d : tensor<5x4x3xf32>) {
  %r = ds4.moe_experts %t4, %k2, %t2, %e, %d, %d {clamp = 1.0 : f64} : (tensor<?x4xf32>, tensor<?x2xi32>, tensor<?x2xf32>, tensor<5x3x4xf32>, tensor<5x4x3xf32>, tensor<5x4x3xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Moe w2.
// MESSAGE: ds4.moe_experts: w2: expected [5, 4, 3], got [5, 3, 4]
func.func @f(%t4 : tensor<?x4xf32>, %t2 : tensor<?x2xf32>, %k2 : tensor<?x2xi32>, %e : tensor<5x3x4xf32>) {
  %r = ds4.moe_experts %t4, %k2, %t2, %e, %e, %e {clamp = 1.0 : f64} : (tensor<?x4xf32>, tensor<?x2xi32>, tensor<?x2xf32>, tensor<5x3x4xf32>, tensor<5x3x4xf32>, tensor<5x3x4xf32>) -> tensor<?x4xf32>
  func.return
}
// -----
// Moe result.
// MESSAGE: ds4.moe_experts: result: expected [4], got [3]
func.func @f(%t4 : tensor<?x4xf32>, %t2 : tensor<?x2xf32>, %k2 : tensor<?x2xi32>, %e : tensor<5x3x4xf32>, %d : tensor<5x4x3xf32>) {
  %r = ds4.moe_experts %t4, %k2, %t2, %e, %e, %d {clamp = 1.0 : f64} : (tensor<?x4xf32>, tensor<?x2xi32>, tensor<?x2xf32>, tensor<5x3x4xf32>, tensor<5x3x4xf32>, tensor<5x4x3xf32>) -> tensor<?x3xf32>
  func.return
}
// -----
// Pool old rows in two forms.
// MESSAGE: ds4.pool: old rows: expected all tensors or all states, got a mixture
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
func.func @f(%at : !ds4.block, %win : !ds4.block, %t4 : tensor<?x4xf32>, %old : tensor<?x7x4xf32>) {
  %s = ds4.open : !ds4.state<@raw>
  %r = ds4.pool %s, %t4, %old, %t4, %at, %win {every = 4, lanes = 2} : (!ds4.state<@raw>, tensor<?x4xf32>, tensor<?x7x4xf32>, tensor<?x4xf32>, !ds4.block, !ds4.block) -> tensor<?x2xf32>
  func.return
}
// -----
// Pool score.
// MESSAGE: ds4.pool: score: expected [4], got [3]
func.func @f(%at : !ds4.block, %win : !ds4.block, %t3 : tensor<?x3xf32>, %t4 : tensor<?x4xf32>, %old : tensor<?x7x4xf32>) {
  %r = ds4.pool %old, %t4, %old, %t3, %at, %win {every = 4, lanes = 2} : (tensor<?x7x4xf32>, tensor<?x4xf32>, tensor<?x7x4xf32>, tensor<?x3xf32>, !ds4.block, !ds4.block) -> tensor<?x2xf32>
  func.return
}
// -----
// Pool result.
// MESSAGE: ds4.pool: result: expected [2], got [4]
func.func @f(%at : !ds4.block, %win : !ds4.block, %t4 : tensor<?x4xf32>, %old : tensor<?x7x4xf32>) {
  %r = ds4.pool %old, %t4, %old, %t4, %at, %win {every = 4, lanes = 2} : (tensor<?x7x4xf32>, tensor<?x4xf32>, tensor<?x7x4xf32>, tensor<?x4xf32>, !ds4.block, !ds4.block) -> tensor<?x4xf32>
  func.return
}
// -----
// Select_rows.
// MESSAGE: ds4.select_rows: selection: expected [3], got [2]
func.func @f(%at : !ds4.block, %tt : tensor<?x?xf32>) {
  %r = ds4.select_rows %tt, %at {every = 4, top_k = 3} : (tensor<?x?xf32>, !ds4.block) -> tensor<?x2xi32>
  func.return
}
// -----
// Index_select.
// MESSAGE: ds4.index_select: selection: expected [3], got [2]
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>, %t1 : tensor<?x1xf32>) {
  %a = ds4.open : !ds4.state<@rows>
  %r = ds4.index_select %t4, %t1, %a, %at {every = 4, scale = 1.0 : f64, top_k = 3} : (tensor<?x4xf32>, tensor<?x1xf32>, !ds4.state<@rows>, !ds4.block) -> tensor<?x2xi32>
  func.return
}
// -----
// Attention q.
// MESSAGE: ds4.attention: q: expected [8], got [4]
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>, %g2 : tensor<2xf32>, %old : tensor<?x7x4xf32>) {
  %r = ds4.attention %t4, %g2 raw %old own %t4 at %at {scale = 1.0 : f64, window = 8, every = 0} : tensor<?x4xf32>, tensor<2xf32>, tensor<?x7x4xf32>, tensor<?x4xf32> -> tensor<?x4xf32>
  func.return
}
// -----
// Attention result.
// MESSAGE: ds4.attention: result: expected [8], got [4]
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>, %t8 : tensor<?x8xf32>, %g2 : tensor<2xf32>, %old : tensor<?x7x4xf32>) {
  %r = ds4.attention %t8, %g2 raw %old own %t4 at %at {scale = 1.0 : f64, window = 8, every = 0} : tensor<?x8xf32>, tensor<2xf32>, tensor<?x7x4xf32>, tensor<?x4xf32> -> tensor<?x4xf32>
  func.return
}
// -----
// Attention every without rows.
// MESSAGE: ds4.attention: expected every = 0 exactly when there are no compressed rows
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>, %t8 : tensor<?x8xf32>, %g2 : tensor<2xf32>, %old : tensor<?x7x4xf32>) {
  %r = ds4.attention %t8, %g2 raw %old own %t4 at %at {scale = 1.0 : f64, window = 8, every = 4} : tensor<?x8xf32>, tensor<2xf32>, tensor<?x7x4xf32>, tensor<?x4xf32> -> tensor<?x8xf32>
  func.return
}
// -----
// Attention rows without every.
// MESSAGE: ds4.attention: expected every = 0 exactly when there are no compressed rows
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>, %t8 : tensor<?x8xf32>, %g2 : tensor<2xf32>, %old : tensor<?x7x4xf32>) {
  %a = ds4.open : !ds4.state<@rows>
  %r = ds4.attention %t8, %g2 raw %old own %t4 rows %a : !ds4.state<@rows> at %at {scale = 1.0 : f64, window = 8, every = 0} : tensor<?x8xf32>, tensor<2xf32>, tensor<?x7x4xf32>, tensor<?x4xf32> -> tensor<?x8xf32>
  func.return
}
// -----
// Attention selection without rows.
// MESSAGE: ds4.attention: a selection: expected compressed rows, got none
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>, %t8 : tensor<?x8xf32>, %k2 : tensor<?x2xi32>, %g2 : tensor<2xf32>, %old : tensor<?x7x4xf32>) {
  %r = ds4.attention %t8, %g2 raw %old own %t4 select %k2 : tensor<?x2xi32> at %at {scale = 1.0 : f64, window = 8, every = 0} : tensor<?x8xf32>, tensor<2xf32>, tensor<?x7x4xf32>, tensor<?x4xf32> -> tensor<?x8xf32>
  func.return
}
// -----
// Kernel by another name.
// MESSAGE: ds4.call_kernel: name: expected add_5661f08f236d, got add_000000000000
func.func @f(%t4 : tensor<?x4xf32>) {
  ds4.call_kernel "add_000000000000"(%t4) states [] {spec = "[\22add\22,[],[[\22x\22,\22in\22,\22float32\22,[8,4],\22\22,0,0]]]"} : (tensor<?x4xf32>) -> ()
  func.return
}
// -----
// Attention over rows of another window.
// MESSAGE: ds4.attention: @rows: expected every 4, got 8
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>, %t8 : tensor<?x8xf32>, %g2 : tensor<2xf32>, %old : tensor<?x7x4xf32>) {
  %a = ds4.open : !ds4.state<@rows>
  %r = ds4.attention %t8, %g2 raw %old own %t4 rows %a : !ds4.state<@rows> at %at {scale = 1.0 : f64, window = 8, every = 8} : tensor<?x8xf32>, tensor<2xf32>, tensor<?x7x4xf32>, tensor<?x4xf32> -> tensor<?x8xf32>
  func.return
}
// -----
// Embed without copies.
// MESSAGE: ds4.embed: result: expected [4], got [1, 4]
func.func @f(%t : tensor<?xi32>, %w : tensor<9x4xf32>) {
  %r = ds4.embed %t, %w {copies = 0} : (tensor<?xi32>, tensor<9x4xf32>) -> tensor<?x1x4xf32>
  func.return
}
// -----
// Attention over an opaque state.
// MESSAGE: ds4.attention: @plane: expected a state of kind ring, got opaque
ds4.state @plane opaque : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 1, d0 - 1)>
func.func @f(%at : !ds4.block, %t4 : tensor<?x4xf32>, %t8 : tensor<?x8xf32>, %g2 : tensor<2xf32>) {
  %s = ds4.open : !ds4.state<@plane>
  %r = ds4.attention %t8, %g2 raw %s own %t4 at %at {scale = 1.0 : f64, window = 8, every = 0} : tensor<?x8xf32>, tensor<2xf32>, !ds4.state<@plane>, tensor<?x4xf32> -> tensor<?x8xf32>
  func.return
}
// -----
// Append to an opaque state.
// MESSAGE: ds4.append: @plane: expected a state of kind append, got opaque
ds4.state @plane opaque : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 1, d0 - 1)>
func.func @f(%win : !ds4.block, %t4 : tensor<?x4xf32>) {
  %s = ds4.open : !ds4.state<@plane>
  %x = ds4.append %s, %t4 at %win : !ds4.state<@plane>, tensor<?x4xf32>
  func.return
}
// -----
// Causal_conv own rows.
// MESSAGE: ds4.causal_conv: own: expected [4], got [3]
func.func @f(%old : tensor<?x3x4xf32>, %own : tensor<?x3xf32>, %taps : tensor<4x4xf32>, %at : !ds4.block) {
  %r = ds4.causal_conv %old, %own, %taps, %at : (tensor<?x3x4xf32>, tensor<?x3xf32>, tensor<4x4xf32>, !ds4.block) -> tensor<?x4xf32>
  func.return
}
// -----
// Causal_conv old rows.
// MESSAGE: ds4.causal_conv: old: expected [3, 4], got [4, 4]
func.func @f(%old : tensor<?x4x4xf32>, %own : tensor<?x4xf32>, %taps : tensor<4x4xf32>, %at : !ds4.block) {
  %r = ds4.causal_conv %old, %own, %taps, %at : (tensor<?x4x4xf32>, tensor<?x4xf32>, tensor<4x4xf32>, !ds4.block) -> tensor<?x4xf32>
  func.return
}
// -----
// Causal_conv result.
// MESSAGE: ds4.causal_conv: result: expected [4], got [3]
func.func @f(%old : tensor<?x3x4xf32>, %own : tensor<?x4xf32>, %taps : tensor<4x4xf32>, %at : !ds4.block) {
  %r = ds4.causal_conv %old, %own, %taps, %at : (tensor<?x3x4xf32>, tensor<?x4xf32>, tensor<4x4xf32>, !ds4.block) -> tensor<?x3xf32>
  func.return
}
// -----
// Delta_gates b.
// MESSAGE: ds4.delta_gates: b: expected [2], got [3]
func.func @f(%a : tensor<?x2xf32>, %b : tensor<?x3xf32>, %rate : tensor<2xf32>, %bias : tensor<2xf32>) {
  %d, %e = ds4.delta_gates %a, %b, %rate, %bias : (tensor<?x2xf32>, tensor<?x3xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<?x2xf32>, tensor<?x2xf32>)
  func.return
}
// -----
// Delta_gates rate.
// MESSAGE: ds4.delta_gates: rate: expected [2], got [3]
func.func @f(%a : tensor<?x2xf32>, %b : tensor<?x2xf32>, %rate : tensor<3xf32>, %bias : tensor<2xf32>) {
  %d, %e = ds4.delta_gates %a, %b, %rate, %bias : (tensor<?x2xf32>, tensor<?x2xf32>, tensor<3xf32>, tensor<2xf32>) -> (tensor<?x2xf32>, tensor<?x2xf32>)
  func.return
}
// -----
// Delta_gates bias.
// MESSAGE: ds4.delta_gates: bias: expected [2], got [3]
func.func @f(%a : tensor<?x2xf32>, %b : tensor<?x2xf32>, %rate : tensor<2xf32>, %bias : tensor<3xf32>) {
  %d, %e = ds4.delta_gates %a, %b, %rate, %bias : (tensor<?x2xf32>, tensor<?x2xf32>, tensor<2xf32>, tensor<3xf32>) -> (tensor<?x2xf32>, tensor<?x2xf32>)
  func.return
}
// -----
// Delta_gates decay.
// MESSAGE: ds4.delta_gates: decay: expected [2], got [3]
func.func @f(%a : tensor<?x2xf32>, %b : tensor<?x2xf32>, %rate : tensor<2xf32>, %bias : tensor<2xf32>) {
  %d, %e = ds4.delta_gates %a, %b, %rate, %bias : (tensor<?x2xf32>, tensor<?x2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<?x3xf32>, tensor<?x2xf32>)
  func.return
}
// -----
// Delta_gates beta.
// MESSAGE: ds4.delta_gates: beta: expected [2], got [3]
func.func @f(%a : tensor<?x2xf32>, %b : tensor<?x2xf32>, %rate : tensor<2xf32>, %bias : tensor<2xf32>) {
  %d, %e = ds4.delta_gates %a, %b, %rate, %bias : (tensor<?x2xf32>, tensor<?x2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<?x2xf32>, tensor<?x3xf32>)
  func.return
}
// -----
// Gated_delta heads.
// MESSAGE: ds4.gated_delta: value heads: expected a multiple of 4 key heads, got 2
func.func @f(%qkv : tensor<?x14xf32>, %d : tensor<?x2xf32>, %b : tensor<?x2xf32>, %old : tensor<?x1x12xf32>, %at : !ds4.block) {
  %o, %p = ds4.gated_delta %qkv, %d, %b, %old, %at {key_heads = 4, key_width = 2, eps = 1.0e-06 : f64} : (tensor<?x14xf32>, tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x1x12xf32>, !ds4.block) -> (tensor<?x6xf32>, tensor<?x12xf32>)
  func.return
}
// -----
// Gated_delta outputs.
// MESSAGE: ds4.gated_delta: expected outputs of whole channels for 2 heads, got 5
func.func @f(%qkv : tensor<?x14xf32>, %d : tensor<?x2xf32>, %b : tensor<?x2xf32>, %old : tensor<?x1x12xf32>, %at : !ds4.block) {
  %o, %p = ds4.gated_delta %qkv, %d, %b, %old, %at {key_heads = 2, key_width = 2, eps = 1.0e-06 : f64} : (tensor<?x14xf32>, tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x1x12xf32>, !ds4.block) -> (tensor<?x5xf32>, tensor<?x12xf32>)
  func.return
}
// -----
// Gated_delta beta.
// MESSAGE: ds4.gated_delta: beta: expected [2], got [3]
func.func @f(%qkv : tensor<?x14xf32>, %d : tensor<?x2xf32>, %b : tensor<?x3xf32>, %old : tensor<?x1x12xf32>, %at : !ds4.block) {
  %o, %p = ds4.gated_delta %qkv, %d, %b, %old, %at {key_heads = 2, key_width = 2, eps = 1.0e-06 : f64} : (tensor<?x14xf32>, tensor<?x2xf32>, tensor<?x3xf32>, tensor<?x1x12xf32>, !ds4.block) -> (tensor<?x6xf32>, tensor<?x12xf32>)
  func.return
}
// -----
// Gated_delta qkv.
// MESSAGE: ds4.gated_delta: qkv: expected [14], got [13]
func.func @f(%qkv : tensor<?x13xf32>, %d : tensor<?x2xf32>, %b : tensor<?x2xf32>, %old : tensor<?x1x12xf32>, %at : !ds4.block) {
  %o, %p = ds4.gated_delta %qkv, %d, %b, %old, %at {key_heads = 2, key_width = 2, eps = 1.0e-06 : f64} : (tensor<?x13xf32>, tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x1x12xf32>, !ds4.block) -> (tensor<?x6xf32>, tensor<?x12xf32>)
  func.return
}
// -----
// Gated_delta old plane.
// MESSAGE: ds4.gated_delta: old: expected [1, 12], got [2, 12]
func.func @f(%qkv : tensor<?x14xf32>, %d : tensor<?x2xf32>, %b : tensor<?x2xf32>, %old : tensor<?x2x12xf32>, %at : !ds4.block) {
  %o, %p = ds4.gated_delta %qkv, %d, %b, %old, %at {key_heads = 2, key_width = 2, eps = 1.0e-06 : f64} : (tensor<?x14xf32>, tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x2x12xf32>, !ds4.block) -> (tensor<?x6xf32>, tensor<?x12xf32>)
  func.return
}
// -----
// Gated_delta planes.
// MESSAGE: ds4.gated_delta: planes: expected [12], got [6]
func.func @f(%qkv : tensor<?x14xf32>, %d : tensor<?x2xf32>, %b : tensor<?x2xf32>, %old : tensor<?x1x12xf32>, %at : !ds4.block) {
  %o, %p = ds4.gated_delta %qkv, %d, %b, %old, %at {key_heads = 2, key_width = 2, eps = 1.0e-06 : f64} : (tensor<?x14xf32>, tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x1x12xf32>, !ds4.block) -> (tensor<?x6xf32>, tensor<?x6xf32>)
  func.return
}
// -----
// Gated_norm gain.
// MESSAGE: ds4.gated_norm: expected a width divisible by the gain's 4, got 6
func.func @f(%x : tensor<?x6xf32>, %gate : tensor<?x6xf32>, %gain : tensor<4xf32>) {
  %r = ds4.gated_norm %x, %gate, %gain {eps = 1.0e-06 : f64} : (tensor<?x6xf32>, tensor<?x6xf32>, tensor<4xf32>) -> tensor<?x6xf32>
  func.return
}
// -----
// Gated_norm gate.
// MESSAGE: ds4.gated_norm: gate: expected [6], got [3]
func.func @f(%x : tensor<?x6xf32>, %gate : tensor<?x3xf32>, %gain : tensor<3xf32>) {
  %r = ds4.gated_norm %x, %gate, %gain {eps = 1.0e-06 : f64} : (tensor<?x6xf32>, tensor<?x3xf32>, tensor<3xf32>) -> tensor<?x6xf32>
  func.return
}
// -----
// Gated_norm result.
// MESSAGE: ds4.gated_norm: result: expected [6], got [3]
func.func @f(%x : tensor<?x6xf32>, %gate : tensor<?x6xf32>, %gain : tensor<3xf32>) {
  %r = ds4.gated_norm %x, %gate, %gain {eps = 1.0e-06 : f64} : (tensor<?x6xf32>, tensor<?x6xf32>, tensor<3xf32>) -> tensor<?x3xf32>
  func.return
}
