// The target chooses by the op that reads the weight; a weight without a reader is plain.
// RUN: ds4c-opt -p 'choose-layout'
// CHECK: ds4.weight "a" layout "panels" : tensor<4x4xf32>
// CHECK: ds4.weight "g" layout "row" : tensor<4xf32>
// CHECK: ds4.weight "idle" layout "row" : tensor<4x4xf32>
func.func @f(%x : tensor<?x4xf32>) -> tensor<?x4xf32> {
  %a = ds4.weight "a" : tensor<4x4xf32>
  %y = ds4.linear %x, %a : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %g = ds4.weight "g" : tensor<4xf32>
  %n = ds4.rms_norm %y, %g {eps = 1.0e-6 : f64} : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %i = ds4.weight "idle" : tensor<4x4xf32>
  func.return %n : tensor<?x4xf32>
}
// -----
// Layouts that are chosen already stay.
// UNCHANGED
func.func @f(%x : tensor<?x4xf32>) -> tensor<?x4xf32> {
  %a = ds4.weight "a" layout "panels" : tensor<4x4xf32>
  %y = ds4.linear %x, %a : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  func.return %y : tensor<?x4xf32>
}
// -----
// One weight under two kinds of reader.
// RUN: not ds4c-opt -p 'choose-layout'
// CHECK: choose-layout: weight a: expected one layout, got row and panels
func.func @f(%x : tensor<?x4xf32>, %at : !ds4.block) -> tensor<?x4xf32> {
  %a = ds4.weight "a" : tensor<4x4xf32>
  %y = ds4.linear %x, %a : (tensor<?x4xf32>, tensor<4x4xf32>) -> tensor<?x4xf32>
  %z = ds4.add_position_bias %y, %a, %at : (tensor<?x4xf32>, tensor<4x4xf32>, !ds4.block) -> tensor<?x4xf32>
  func.return %z : tensor<?x4xf32>
}
// -----
// A target that nobody has.
// RUN: not ds4c-opt -p 'choose-layout{target="abacus"}'
// CHECK: target: expected one of cpu, got abacus
func.func @f() {
  func.return
}
