// Four functions that cover every state but host states.
// RUN: ds4c-opt -p 'plan-state{horizon=10 context=64},insert-snapshots'
// CHECK:      func.func @snapshot(%slot: index, %at: index) -> (tensor<?x4xf32>, tensor<?x2xf32>) {
// CHECK-NEXT:   [[A:%.*]] = ds4.open : !ds4.state<@raw>
// CHECK-NEXT:   [[B:%.*]] = ds4.snapshot [[A]] slot %slot at %at : !ds4.state<@raw> -> tensor<?x4xf32>
// CHECK-NEXT:   [[C:%.*]] = ds4.open : !ds4.state<@rows>
// CHECK-NEXT:   [[D:%.*]] = ds4.snapshot [[C]] slot %slot at %at : !ds4.state<@rows> -> tensor<?x2xf32>
// CHECK-NEXT:   func.return [[B]], [[D]]
// CHECK:      func.func @restore(%slot: index, %at: index, %raw: tensor<?x4xf32>, %rows: tensor<?x2xf32>) {
// CHECK:        [[E:%.*]] = ds4.restore {{.*}}, %raw slot %slot at %at
// CHECK-NEXT:   ds4.close [[E]] : !ds4.state<@raw>
// CHECK:        [[F:%.*]] = ds4.restore {{.*}}, %rows slot %slot at %at
// CHECK-NEXT:   ds4.close [[F]] : !ds4.state<@rows>
// CHECK:      func.func @fork(%source: index, %target: index, %first: index, %at: index) {
// CHECK:        ds4.fork {{.*}} from %source to %target first %first at %at : !ds4.state<@raw>
// CHECK:        ds4.fork {{.*}} from %source to %target first %first at %at : !ds4.state<@rows>
// CHECK:      func.func @rewind(%to: index, %position: index, %high_water: index, %floor: index) -> index {
// CHECK-NEXT:   [[G:%.*]] = ds4.rewind %to from %position high_water %high_water floor %floor horizon 10
// CHECK-NEXT:   func.return [[G]] : index
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
ds4.state @rows append : tensor<?x2xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
ds4.state @history host : tensor<?x1xi32> every 1
// -----
// A module without a plan.
// RUN: not ds4c-opt -p 'insert-snapshots'
// CHECK: insert-snapshots: expected a planned module, got none; run plan-state first
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
// -----
// A module that has the functions already.
// RUN: not ds4c-opt -p 'plan-state,insert-snapshots,insert-snapshots'
// CHECK: insert-snapshots: @snapshot: expected a free name, got a function that is there already
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
