// SPDX-License-Identifier: Apache-2.0
//
// SvgCanvas: the few shapes that pictures of layouts are drawn with, in colours for light and dark
// paper. Internal to the printers. Lengths are pixels, y grows downwards.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace signalbox {

class SvgCanvas {
 public:
  // `style`: title, step, note, why, head (centred) or sub (centred). Any text; markup is escaped.
  void Text(double x, double y, std::string_view style, std::string_view text);
  void Rect(double x, double y, double w, double h, std::string_view colour);
  // A rectangle of a style: slot or band.
  void Frame(double x, double y, double w, double h, std::string_view style);
  void Diamond(double x, double y, double radius, std::string_view colour);
  // From (x0, y0) down to (x1, y1).
  void Curve(double x0, double y0, double x1, double y1, std::string_view colour);
  void ArrowHead(double x, double y, std::string_view colour);
  void Plus(double x, double y);

  // The whole file.
  std::string File(double width, double height) const;

 private:
  std::string out_;
};

// Lines of at most `width` characters, cut at spaces where there are any.
std::vector<std::string> WrapText(std::string_view text, size_t width);

}  // namespace signalbox
