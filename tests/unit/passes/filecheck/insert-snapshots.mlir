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
// A step copies the rows of each mark right before every write over old rows; append rows are shared by pages.
// RUN: ds4c-opt -p 'plan-state{horizon=10 context=64},insert-snapshots'
// CHECK:      func.func @step(%x: tensor<?x4xf32>, %y: tensor<?x6xf32>, %win: !ds4.block, %at: !ds4.block, %marks: !ds4.marks) -> tensor<?x4xf32> {
// CHECK-NEXT:   [[A:%.*]] = ds4.open : !ds4.state<@raw>
// CHECK-NEXT:   [[B:%.*]] = ds4.open : !ds4.state<@of4>
// CHECK-NEXT:   [[C:%.*]] = ds4.open : !ds4.state<@rows>
// CHECK-NEXT:   [[D:%.*]] = ds4.open : !ds4.state<@sum>
// CHECK-NEXT:   ds4.read_rows [[A]], %at {span = 7 : i64}
// CHECK-NEXT:   ds4.append [[C]], %x at %win
// CHECK-NEXT:   ds4.snapshot_rows [[A]], %x at %at marks %marks : !ds4.state<@raw>, tensor<?x4xf32>
// CHECK-NEXT:   ds4.write [[A]], %x at %at : !ds4.state<@raw>, tensor<?x4xf32>
// CHECK-NEXT:   ds4.snapshot_rows [[D]], %x at %at marks %marks : !ds4.state<@sum>, tensor<?x4xf32>
// CHECK-NEXT:   ds4.write [[D]], %x at %at : !ds4.state<@sum>, tensor<?x4xf32>
// CHECK-NEXT:   ds4.snapshot_rows [[B]], %y at %at marks %marks : !ds4.state<@of4>, tensor<?x6xf32>
// CHECK-NEXT:   ds4.write [[B]], %y at %at : !ds4.state<@of4>, tensor<?x6xf32>
// CHECK-NEXT:   ds4.close
// CHECK:      func.func @snapshot(%slot: index, %at: index) -> (tensor<?x4xf32>, tensor<?x6xf32>, tensor<?x4xf32>, tensor<?x4xf32>) {
ds4.state @raw ring : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 7, d0)>
ds4.state @of4 ring : tensor<?x6xf32> every 4 reads affine_map<(d0) -> (((d0 floordiv 4) * 4) - 4, d0)>
ds4.state @rows append : tensor<?x4xf32> every 4 reads affine_map<(d0) -> (0, (d0 + 1) floordiv 4 - 1)>
ds4.state @sum opaque : tensor<?x4xf32> every 1 reads affine_map<(d0) -> (d0 - 1, d0 - 1)>
func.func @step(%x : tensor<?x4xf32>, %y : tensor<?x6xf32>, %win : !ds4.block, %at : !ds4.block) -> tensor<?x4xf32> {
  %a = ds4.open : !ds4.state<@raw>
  %b = ds4.open : !ds4.state<@of4>
  %c = ds4.open : !ds4.state<@rows>
  %d = ds4.open : !ds4.state<@sum>
  %old = ds4.read_rows %a, %at {span = 7} : (!ds4.state<@raw>, !ds4.block) -> tensor<?x7x4xf32>
  %c1 = ds4.append %c, %x at %win : !ds4.state<@rows>, tensor<?x4xf32>
  %a1 = ds4.write %a, %x at %at : !ds4.state<@raw>, tensor<?x4xf32>
  %d1 = ds4.write %d, %x at %at : !ds4.state<@sum>, tensor<?x4xf32>
  %b1 = ds4.write %b, %y at %at : !ds4.state<@of4>, tensor<?x6xf32>
  ds4.close %a1 : !ds4.state<@raw>
  ds4.close %b1 : !ds4.state<@of4>
  ds4.close %c1 : !ds4.state<@rows>
  ds4.close %d1 : !ds4.state<@sum>
  func.return %x : tensor<?x4xf32>
}
// -----
// A step without states has marks all the same: every step has the same arguments.
// RUN: ds4c-opt -p 'plan-state{horizon=10 context=64},insert-snapshots'
// CHECK:      func.func @step(%x: tensor<?x4xf32>, %marks: !ds4.marks) {
// CHECK-NEXT:   func.return
func.func @step(%x : tensor<?x4xf32>) {
  func.return
}
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
