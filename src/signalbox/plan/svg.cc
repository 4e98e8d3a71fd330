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
constexpr double kBig = 10.4;    // width of a character of the title
constexpr double kGlyph = 7.5;   // of a step
constexpr double kSmall = 6.35;  // of a value or a reason
constexpr double kLine = 15;     // height of a line of a step
constexpr double kNote = 13;     // of a value or a reason
constexpr double kTile = 15;     // height of a tile
constexpr double kFlow = 36;     // between the rows before and after a step that moves them
constexpr double kMargin = 20;
constexpr double kColumn = 112;
constexpr double kGap = 18;  // between columns

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
    title_ = fmt::format("{}, {}", kind_.kind, ToString(phase_.plan.phase));
    subtitle_ = Subtitle(plan);
    text_width_ = std::clamp(double(longest) * kGlyph + 36, 350.0, 640.0);
    left_ = kMargin + text_width_ + kGap;
    width_ =
        std::max({left_ + ranks_ * (kColumn + kGap) - kGap, kMargin + double(title_.size()) * kBig,
                  kMargin + double(subtitle_.size()) * kSmall}) +
        kMargin;
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

  std::string Subtitle(const LayoutPlan& plan) const {
    int64_t layers = 0;
    for (const KindPlan& kind : plan.kinds) layers += kind.layers;
    std::string text = fmt::format("{} of {} layers; {}", kind_.layers, layers, mesh_.ToString());
    for (const std::string& view : ViewsOf(mesh_)) text += ", " + view;
    if (const auto& contract = phase_.context.contract) {
      text += "; back end " + ContractId(*contract);
    }
    if (phase_.context.runner) text += ", runner " + phase_.context.runner->name;
    return text;
  }

  void Header() {
    y_ = kMargin + 14;
    canvas_.Text(kMargin, y_, "title", title_);
    canvas_.Text(kMargin, y_ += 19, "note", subtitle_);
    Legend();
    y_ += 36;
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

  // What shapes mean, then whose colour is whose; as many lines as that takes.
  void Legend() {
    double top = y_ + 13;
    double x = kMargin;
    const auto entry = [&](const std::string& text, double drawn, const auto& draw) {
      const double wide = drawn + 5 + double(text.size()) * kSmall;
      if (x > kMargin && x + wide > width_ - kMargin) x = kMargin, top += 18;
      draw(x);
      canvas_.Text(x + drawn + 5, top + 10, "note", text);
      x += wide + 16;
    };
    entry("a block of rows", 12, [&](double at) { Tile(at, top, 12, 12, Reg::kResidual, 0, 1); });
    entry("shares of a sum that is owed", 27, [&](double at) {
      Tile(at, top, 12, 12, Reg::kMixed, 0, 2);
      Tile(at + 15, top, 12, 12, Reg::kMixed, 1, 2);
    });
    entry("not on this rank", 12, [&](double at) { Slot(at, top, 12, 12); });
    entry("a row sent to this rank's experts", 12,
          [&](double at) { canvas_.Diamond(at + 6, top + 6, 6, Colour(Reg::kDispatched)); });
    entry("summed", 12, [&](double at) { canvas_.Plus(at + 6, top + 6); });
    x = kMargin, top += 18;
    std::vector<Reg> used = {Reg::kResidual};
    for (const Step& step : phase_.plan.steps) {
      if (std::ranges::find(used, step.dst) == used.end()) used.push_back(step.dst);
    }
    for (Reg reg : used) {
      entry(std::string(ToString(reg)), 12,
            [&](double at) { canvas_.Rect(at, top + 1, 12, 10, Colour(reg)); });
    }
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
    const double text = kLine + kNote * double(notes.size() + whys.size());
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
    for (const std::string& note : notes) canvas_.Text(kMargin + 12, line += kNote, "note", note);
    for (const std::string& why : whys) canvas_.Text(kMargin + 12, line += kNote, "why", why);
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
    const std::string text = fmt::format(
        "each rank sends, per token: {:.0f} bytes in {} collectives, {:.0f} in dispatch "
        "and combine; it does {:.2f} times a fair share of the work",
        cost.collective_bytes, cost.collectives, cost.exchange_bytes, cost.repeated);
    y_ += 8;
    for (const std::string& line : WrapText(text, size_t((width_ - 2 * kMargin) / kSmall))) {
      canvas_.Text(kMargin, y_ += 14, "note", line);
    }
  }

  const Mesh& mesh_;
  const KindPlan& kind_;
  const PhasePlan& phase_;
  int ranks_ = 1;
  AxisSet split_;    // axes that split rows at some step
  int repeats_ = 1;  // tiles per position along them
  int tiles_ = 1;
  std::string title_, subtitle_;
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
