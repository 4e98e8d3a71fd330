// SPDX-License-Identifier: Apache-2.0
//
// Spellings of TensorRule that families share.
//
//   rules.push_back(Matrix("mlp.gate", Role::kRouter, experts, hidden));
#pragma once

#include <string>
#include <vector>

#include "signalbox/model/weight_map.h"

namespace signalbox::weight_rules {

// [rows, cols], cut by rows.
TensorRule Matrix(std::string name, Role role, int64_t rows, int64_t cols,
                  Split split = Split::kWhole, int64_t units = 1);
// A matrix whose columns are cut: the input of a row-parallel projection.
TensorRule MatrixByCols(std::string name, Role role, int64_t rows, int64_t cols, Split split,
                        int64_t units);
TensorRule Vector(std::string name, Role role, int64_t size, Split split = Split::kWhole,
                  int64_t units = 1);
// The dense feed-forward part under mlp.
void AddDense(const DenseFacts& d, int64_t hidden, std::vector<TensorRule>* rules);

}  // namespace signalbox::weight_rules
