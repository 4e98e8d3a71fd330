// SPDX-License-Identifier: Apache-2.0
#include "signalbox/model/families/rules.h"

#include <utility>

namespace signalbox::weight_rules {

using Kind = TensorRule::Kind;

TensorRule Matrix(std::string name, Role role, int64_t rows, int64_t cols, Split split,
                  int64_t units) {
  return {.kind = Kind::kMatrix,
          .name = std::move(name),
          .parts = {{role, rows, split, units}},
          .other = cols};
}

TensorRule MatrixByCols(std::string name, Role role, int64_t rows, int64_t cols, Split split,
                        int64_t units) {
  return {.kind = Kind::kMatrix,
          .name = std::move(name),
          .parts = {{role, cols, split, units}},
          .axis = 1,
          .other = rows};
}

TensorRule Vector(std::string name, Role role, int64_t size, Split split, int64_t units) {
  return {.kind = Kind::kVector, .name = std::move(name), .parts = {{role, size, split, units}}};
}

void AddDense(const DenseFacts& d, int64_t hidden, std::vector<TensorRule>* rules) {
  const Split width = Split::kDenseWidth;
  rules->push_back(Matrix("mlp.gate_proj", Role::kDenseGate, d.inner, hidden, width, d.inner));
  rules->push_back(Matrix("mlp.up_proj", Role::kDenseUp, d.inner, hidden, width, d.inner));
  rules->push_back(
      MatrixByCols("mlp.down_proj", Role::kDenseDown, hidden, d.inner, width, d.inner));
}

}  // namespace signalbox::weight_rules
