// Scores and selection become one op.
// RUN: ds4c-opt -p 'fuse-index-select'
// CHECK:      [[R:%.*]] = ds4.open
// CHECK-NEXT: [[C:%.*]] = ds4.index_select %q, %w, [[R]], %at {every = 4 : i64, scale = 5.000000e-01 : f64, top_k = 3 : i64}
// CHECK-NEXT: func.return [[C]]
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @step(%q : tensor<?x4xf32>, %w : tensor<?x1xf32>, %at : !ds4.block, %other : !ds4.block) -> tensor<?x3xi32> {
  %r = ds4.open : !ds4.state<@rows>
  %s = ds4.index_scores %q, %w, %r, %at {every = 4, scale = 0.5 : f64} : (tensor<?x4xf32>, tensor<?x1xf32>, !ds4.state<@rows>, !ds4.block) -> tensor<?x?xf32>
  %c = ds4.select_rows %s, %at {every = 4, top_k = 3} : (tensor<?x?xf32>, !ds4.block) -> tensor<?x3xi32>
  func.return %c : tensor<?x3xi32>
}
// -----
// Scores with a second reader are left alone.
// UNCHANGED
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @step(%q : tensor<?x4xf32>, %w : tensor<?x1xf32>, %at : !ds4.block, %other : !ds4.block) -> (tensor<?x3xi32>, tensor<?x?xf32>) {
  %r = ds4.open : !ds4.state<@rows>
  %s = ds4.index_scores %q, %w, %r, %at {every = 4, scale = 0.5 : f64} : (tensor<?x4xf32>, tensor<?x1xf32>, !ds4.state<@rows>, !ds4.block) -> tensor<?x?xf32>
  %c = ds4.select_rows %s, %at {every = 4, top_k = 3} : (tensor<?x?xf32>, !ds4.block) -> tensor<?x3xi32>
  func.return %c, %s : tensor<?x3xi32>, tensor<?x?xf32>
}
// -----
// A selection for another ratio is left alone.
// UNCHANGED
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @step(%q : tensor<?x4xf32>, %w : tensor<?x1xf32>, %at : !ds4.block, %other : !ds4.block) -> tensor<?x3xi32> {
  %r = ds4.open : !ds4.state<@rows>
  %s = ds4.index_scores %q, %w, %r, %at {every = 4, scale = 0.5 : f64} : (tensor<?x4xf32>, tensor<?x1xf32>, !ds4.state<@rows>, !ds4.block) -> tensor<?x?xf32>
  %c = ds4.select_rows %s, %at {every = 8, top_k = 3} : (tensor<?x?xf32>, !ds4.block) -> tensor<?x3xi32>
  func.return %c : tensor<?x3xi32>
}
// -----
// A selection for another block is left alone.
// UNCHANGED
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
func.func @step(%q : tensor<?x4xf32>, %w : tensor<?x1xf32>, %at : !ds4.block, %other : !ds4.block) -> tensor<?x3xi32> {
  %r = ds4.open : !ds4.state<@rows>
  %s = ds4.index_scores %q, %w, %r, %at {every = 4, scale = 0.5 : f64} : (tensor<?x4xf32>, tensor<?x1xf32>, !ds4.state<@rows>, !ds4.block) -> tensor<?x?xf32>
  %c = ds4.select_rows %s, %other {every = 4, top_k = 3} : (tensor<?x?xf32>, !ds4.block) -> tensor<?x3xi32>
  func.return %c : tensor<?x3xi32>
}
