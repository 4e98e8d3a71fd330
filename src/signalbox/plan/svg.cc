// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/check.h"
#include "signalbox/plan/mesh_text.h"
#include "signalbox/plan/print.h"
#include "signalbox/plan/svg_canvas.h"

namespace signalbox {
namespace {

constexpr int kMostRanks = 8;    // columns drawn
constexpr double kGlyph = 7.0;   // width of a character of a step
constexpr double kSmall = 5.75;  // of a value or a reason
constexpr double kLine = 14;
constexpr double kTile = 15;  // height of a tile
constexpr double kFlow = 36;  // between the rows before and after a step that moves them
constexpr double kMargin = 20;
constexpr double kColumn = 112;
constexpr double kGap = 18;      // between columns
constexpr double kLegend = 740;  // width of the longest line above the columns

// In the order of Reg; bright enough for dark paper, dark enough for light.
constexpr std::string_view kColours[] = {"#5b7fa6", "#2a9d8f", "#e08a2c", "#8c6bd1", "#d05fa2",
                                         "#c2477f", "#d1495b", "#4f9d4f", "#2f9fc4", "#a07855"};

bool MovesRows(StepKind kind) {
  return kind == StepKind::kAllReduce || kind == StepKind::kReduceScatter ||
         kind == StepKind::kAllGather || kind == StepKind::kDispatch || kind == StepKind::kCombine;
}
bool Sums(StepKind kind) {
  return kind == StepKind::kAllReduce || kind == StepKind::kReduceScatter;
}

class Picture {
 public:
  Picture(const LayoutPlan& plan, const KindPlan& kind, const PhasePlan& phase)
      : mesh_(plan.mesh()), kind_(kind), phase_(phase) {
    ranks_ = std::min(mesh_.ranks(), kMostRanks);
    AxisSet split = phase.checked.before[Reg::kResidual]->rows;
    size_t longest = 40;
    for (size_t i = 0; i < phase.plan.steps.size(); ++i) {
      const Step& step = phase.plan.steps[i];
      split = split | phase.checked.after[i][step.dst]->rows;
      longest = std::max(longest, step.ToString(mesh_).size());
    }
    split_ = split;
    const int ways = mesh_.Size(split);
    repeats_ = ways >= 4 ? 1 : 4 / ways;
    tiles_ = std::min(ways * repeats_, 32);
    text_width_ = std::clamp(double(longest) * kGlyph + 30, 330.0, 600.0);
    left_ = kMargin + text_width_ + kGap;
    width_ = std::max(left_ + ranks_ * (kColumn + kGap) - kGap, kLegend) + kMargin;
  }

  std::string Run() {
    Header();
    Band("", phase_.checked.before[Reg::kResidual]->ToString(mesh_), "", nullptr, 0);
    for (size_t i = 0; i < phase_.plan.steps.size(); ++i) {
      const Step& step = phase_.plan.steps[i];
      Band(step.ToString(mesh_), phase_.checked.after[i][step.dst]->ToString(mesh_), step.reason,
           &step, i);
    }
    Footer();
    return canvas_.File(width_, y_ + kMargin);
  }

 private:
  double ColumnX(int rank) const { return left_ + rank * (kColumn + kGap); }
  double TileWidth() const { return kColumn / tiles_; }
  static std::string_view Colour(Reg reg) { return kColours[static_cast<size_t>(reg)]; }

  void Header() {
    y_ = kMargin + 14;
    canvas_.Text(kMargin, y_, "title",
                 fmt::format("{}, {}", kind_.kind, ToString(phase_.plan.phase)));
    std::string subtitle = mesh_.ToString();
    for (const std::string& view : ViewsOf(mesh_)) subtitle += ", " + view;
    if (const auto& contract = phase_.context.contract) {
      subtitle += ", back end " + ContractId(*contract);
    }
    if (phase_.context.runner) subtitle += ", runner " + phase_.context.runner->name;
    canvas_.Text(kMargin, y_ += 18, "note", subtitle);
    Legend();
    y_ += 30;
    for (int rank = 0; rank < ranks_; ++rank) {
      std::vector<std::string> place;
      for (size_t i = 0; i < mesh_.axes().size(); ++i) {
        place.push_back(fmt::format("{} {}", mesh_.axes()[i].name,
                                    mesh_.Position(RankId(rank), AxisSet::Single(int(i)))));
      }
      const double x = ColumnX(rank) + kColumn / 2;
      canvas_.Text(x, y_ - 12, "head", fmt::format("rank {}", rank));
      canvas_.Text(x, y_ - 1, "sub", fmt::format("{}", fmt::join(place, " ")));
    }
    if (ranks_ < mesh_.ranks()) {
      canvas_.Text(kMargin, y_ - 1, "note",
                   fmt::format("the first {} of {} ranks", ranks_, mesh_.ranks()));
    }
    y_ += 8;
  }

  void Legend() {
    const double top = y_ + 12;
    double x = kMargin;
    const auto entry = [&](std::string_view text, double drawn) {
      canvas_.Text(x + drawn + 5, top + 9, "note", text);
      x += drawn + 5 + double(text.size()) * kSmall + 16;
    };
    Tile(x, top, 12, 12, Reg::kResidual, 0, 1);
    entry("a block of rows", 12);
    Tile(x, top, 12, 12, Reg::kMixed, 0, 2);
    Tile(x + 15, top, 12, 12, Reg::kMixed, 1, 2);
    entry("shares of a sum that is owed", 27);
    Slot(x, top, 12, 12);
    entry("rows of other ranks", 12);
    canvas_.Diamond(x + 6, top + 6, 6, Colour(Reg::kDispatched));
    entry("rows sent to this rank's experts", 12);
    canvas_.Plus(x + 6, top + 6);
    entry("summed", 12);
    y_ = top + 14;
  }

  void Slot(double x, double y, double w, double h) { canvas_.Frame(x, y, w, h, "slot"); }
  // Share `share` of `shares` of a row's sum: so much of the tile's height.
  void Tile(double x, double y, double w, double h, Reg reg, int share, int shares) {
    Slot(x, y, w, h);
    const double part = (h - 1.6) / shares;
    canvas_.Rect(x + 0.8, y + 0.8 + share * part, w - 1.6, std::max(part, 1.0), Colour(reg));
  }

  // What every rank holds of a register.
  void Strip(double y, Reg reg, const Value& v) {
    const bool sent = v.facts.shape != RowShape::kNone;
    const AxisSet owed = v.Owed();
    for (int rank = 0; rank < ranks_; ++rank) {
      const double x = ColumnX(rank);
      if (sent) {
        const int senders = std::min(mesh_.Size(v.facts.dispatched) * 2, 16);
        const double step = kColumn / senders;
        for (int i = 0; i < senders; ++i) {
          canvas_.Diamond(x + (i + 0.5) * step, y + kTile / 2, std::min(step / 2 - 0.5, kTile / 2),
                          Colour(reg));
        }
        continue;
      }
      const int share = mesh_.Position(RankId(rank), owed);
      for (int tile = 0; tile < tiles_; ++tile) {
        const double at = x + tile * TileWidth();
        if (Holds(rank, v.rows, tile)) {
          Tile(at, y, TileWidth(), kTile, reg, share, mesh_.Size(owed));
        } else {
          Slot(at, y, TileWidth(), kTile);
        }
      }
    }
  }

  // Tiles stand for the positions along all axes that split rows in this plan.
  bool Holds(int rank, AxisSet rows, int tile) const {
    int position = tile / repeats_;
    for (size_t i = mesh_.axes().size(); i-- > 0;) {
      if (!split_.Has(int(i))) continue;
      const int size = mesh_.axes()[i].size;
      const AxisSet axis = AxisSet::Single(int(i));
      if (rows.Has(int(i)) && position % size != mesh_.Position(RankId(rank), axis)) return false;
      position /= size;
    }
    return true;
  }

  // Lines from every rank of a group to every other, with a plus sign where they are summed.
  void Flow(const Step& step, double top, double bottom) {
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::vector<RankId> group = mesh_.Group(RankId(rank), step.axes);
      std::vector<double> xs;
      for (RankId peer : group) {
        if (peer.value() < ranks_) xs.push_back(ColumnX(peer.value()) + kColumn / 2);
      }
      const double from = ColumnX(rank) + kColumn / 2;
      for (double to : xs) canvas_.Curve(from, top, to, bottom, Colour(step.dst));
      canvas_.ArrowHead(from, bottom + 1, Colour(step.dst));
      if (Sums(step.kind)) canvas_.Plus(from, bottom - 9);
    }
  }

  // One step: its text on the left, what it leaves on every rank on the right.
  void Band(const std::string& title, const std::string& value, const std::string& reason,
            const Step* step, size_t index) {
    const size_t chars = static_cast<size_t>((text_width_ - 24) / kSmall);
    const auto notes = WrapText(value, chars);
    const auto whys = WrapText(reason.empty() ? "" : "because " + reason, chars);
    const bool moves = step != nullptr && MovesRows(step->kind) && mesh_.Size(step->axes) > 1;
    const double tiles = moves ? 2 * kTile + kFlow : kTile;
    const double text = kLine + 12.0 * double(notes.size() + whys.size());
    const double height = std::max(tiles, text) + 10;
    if (index % 2 == 0 && step != nullptr) {
      canvas_.Frame(kMargin - 8, y_, width_ - 2 * kMargin + 16, height, "band");
    }
    double line = y_ + 16;
    const Reg reg = step == nullptr ? Reg::kResidual : step->dst;
    canvas_.Rect(kMargin, y_ + 5, 4, height - 10, Colour(reg));
    canvas_.Text(
        kMargin + 12, line, "step",
        step == nullptr ? "x enters the layer" : fmt::format("{:>2} {}", index + 1, title));
    for (const std::string& note : notes) canvas_.Text(kMargin + 12, line += 12, "note", note);
    for (const std::string& why : whys) canvas_.Text(kMargin + 12, line += 12, "why", why);
    Rows(step, reg, index, moves);
    y_ += height;
  }

  void Rows(const Step* step, Reg reg, size_t index, bool moves) {
    const CheckedPlan& checked = phase_.checked;
    const double top = y_ + 5;
    if (!moves) {
      Strip(top, reg, step == nullptr ? *checked.before[reg] : *checked.after[index][reg]);
      return;
    }
    const auto& before = index == 0 ? checked.before : checked.after[index - 1];
    Strip(top, step->source(), *before[step->source()]);
    Flow(*step, top + kTile + 2, top + kTile + kFlow - 2);
    Strip(top + kTile + kFlow, reg, *checked.after[index][reg]);
  }

  void Footer() {
    const PlanCost& cost = phase_.cost;
    canvas_.Text(
        kMargin, y_ += 22, "note",
        fmt::format("per token and rank: {:.0f} bytes in {} collectives, {:.0f} in dispatch and "
                    "combine; work {:.2f} of a fair share",
                    cost.collective_bytes, cost.collectives, cost.exchange_bytes, cost.repeated));
  }

  const Mesh& mesh_;
  const KindPlan& kind_;
  const PhasePlan& phase_;
  int ranks_ = 1;
  AxisSet split_;    // axes that split rows at some step
  int repeats_ = 1;  // tiles per position along them
  int tiles_ = 1;
  double text_width_ = 0;
  double left_ = 0;
  double width_ = 0;
  double y_ = 0;
  SvgCanvas canvas_;
};

}  // namespace

std::string LayoutToSvg(const LayoutPlan& plan, const SvgView& view) {
  SB_CHECK(view.kind < plan.kinds.size()) << "no such layer kind";
  const KindPlan& kind = plan.kinds[view.kind];
  const PhasePlan* phase = kind.phase(view.phase);
  SB_CHECK(phase != nullptr) << "no such phase";
  return Picture(plan, kind, *phase).Run();
}

}  // namespace signalbox
