// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/svg_canvas.h"

#include <fmt/format.h>

#include <algorithm>

namespace signalbox {
namespace {

constexpr std::string_view kStyle = R"(
svg { background: #ffffff; }
text { font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #1c232b; }
.title { font-size: 17px; font-weight: 700; }
.step { font-size: 12.4px; font-weight: 600; }
.note { font-size: 10.5px; fill: #5d6873; }
.why { font-size: 10.5px; fill: #9a5b13; }
.head { font-size: 12px; font-weight: 600; text-anchor: middle; }
.sub { font-size: 10px; fill: #5d6873; text-anchor: middle; }
.band { fill: #f3f5f7; }
.slot { fill: none; stroke: #c5ccd3; stroke-width: 0.8; }
.flow { fill: none; stroke-width: 1.1; stroke-opacity: 0.55; }
.sum { fill: #ffffff; stroke: #1c232b; stroke-width: 1.2; }
.plus { stroke: #1c232b; stroke-width: 1.2; }
@media (prefers-color-scheme: dark) {
  svg { background: #14181d; }
  text { fill: #e8ecf0; }
  .note, .sub { fill: #9aa7b3; }
  .why { fill: #e0a458; }
  .band { fill: #1c2229; }
  .slot { stroke: #3d4753; }
  .sum { fill: #14181d; stroke: #e8ecf0; }
  .plus { stroke: #e8ecf0; }
}
)";

std::string Escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return out;
}

}  // namespace

void SvgCanvas::Text(double x, double y, std::string_view style, std::string_view text) {
  out_ += fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", style, x, y,
                      Escaped(text));
}

void SvgCanvas::Rect(double x, double y, double w, double h, std::string_view colour) {
  out_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x, y, w,
      h, colour);
}

void SvgCanvas::Frame(double x, double y, double w, double h, std::string_view style) {
  out_ += fmt::format(
      "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n", style,
      x, y, w, h);
}

void SvgCanvas::Diamond(double x, double y, double radius, std::string_view colour) {
  out_ += fmt::format(
      "<path d=\"M{0:.1f} {1:.1f}l{2:.1f} {2:.1f}l-{2:.1f} {2:.1f}l-{2:.1f} -{2:.1f}z\" "
      "fill=\"{3}\"/>\n",
      x, y - radius, radius, colour);
}

void SvgCanvas::Curve(double x0, double y0, double x1, double y1, std::string_view colour) {
  out_ += fmt::format(
      "<path class=\"flow\" stroke=\"{0}\" d=\"M{1:.1f} {2:.1f}C{1:.1f} {5:.1f} {3:.1f} {5:.1f} "
      "{3:.1f} {4:.1f}\"/>\n",
      colour, x0, y0, x1, y1, (y0 + y1) / 2);
}

void SvgCanvas::ArrowHead(double x, double y, std::string_view colour) {
  out_ += fmt::format("<path d=\"M{:.1f} {:.1f}l-4 -6h8z\" fill=\"{}\"/>\n", x, y, colour);
}

void SvgCanvas::Plus(double x, double y) {
  out_ += fmt::format(
      "<circle class=\"sum\" cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"5.5\"/>\n"
      "<path class=\"plus\" d=\"M{2:.1f} {1:.1f}h6m-3 -3v6\"/>\n",
      x, y, x - 3);
}

std::string SvgCanvas::File(double width, double height) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\">\n<style>{2}</style>\n{3}</svg>\n",
      width, height, kStyle, out_);
}

std::vector<std::string> WrapText(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  while (text.size() > width) {
    size_t cut = text.rfind(' ', width);
    if (cut == text.npos || cut == 0) cut = width;
    lines.emplace_back(text.substr(0, cut));
    text.remove_prefix(std::min(text.size(), cut + 1));
  }
  if (!text.empty()) lines.emplace_back(text);
  return lines;
}

}  // namespace signalbox
