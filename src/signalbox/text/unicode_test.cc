// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/unicode.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"

namespace signalbox::unicode_test {
namespace {

std::string Utf8(utf8proc_int32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(code_point, bytes);
  return std::string(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

std::string Nfc(std::string_view text) {
  std::string storage;
  return std::string(ToNfc(text, storage));
}

std::string ReferenceNfc(const std::string& text) {
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> result(
      utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str())), &std::free);
  return reinterpret_cast<const char*>(result.get());
}

std::string Decoded(std::string_view bytes) {
  std::string text;
  EXPECT_EQ(AppendUtf8(bytes, Utf8End::kFinal, text), bytes.size());
  return text;
}

TEST(AppendUtf8Test, ReplacesAsPythonDoes) {
  const auto cases = ReadJsonFile(SIGNALBOX_TESTDATA "/tokenizer/utf8.json");
  ASSERT_TRUE(cases.ok()) << cases.status().ToString();
  for (const auto& entry : *cases) {
    const std::string hex = entry["bytes"];
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    EXPECT_EQ(Decoded(bytes), entry["text"].get<std::string>()) << hex;
  }
}

TEST(AppendUtf8Test, LeavesABegunCharacter) {
  std::string text;
  EXPECT_EQ(AppendUtf8("a\xE4\xB8", Utf8End::kMore, text), 1u);
  EXPECT_EQ(text, "a");
  EXPECT_EQ(AppendUtf8("\xF0\x9F\x98\xC3", Utf8End::kMore, text), 3u);
  EXPECT_EQ(text, "a\uFFFD");
  EXPECT_EQ(AppendUtf8("\xFF", Utf8End::kMore, text), 1u) << "no character begins so";
}

RC_GTEST_PROP(AppendUtf8Test, PartsMakeTheWhole, (const std::string& bytes)) {
  std::string text;
  std::string pending;
  for (const char byte : bytes) {
    pending += byte;
    pending.erase(0, AppendUtf8(pending, Utf8End::kMore, text));
    RC_ASSERT(pending.size() < 4u);
  }
  AppendUtf8(pending, Utf8End::kFinal, text);
  RC_ASSERT(text == Decoded(bytes));
}

TEST(ToNfcTest, Examples) {
  const struct {
    std::string text;
    std::string nfc;
  } cases[] = {
      {"", ""},
      {"plain", "plain"},
      {"e\u0301", "\u00E9"},
      {"q\u0307\u0323", "q\u0323\u0307"},       // marks in canonical order
      {"\u1112\u1161\u11AB", "\uD55C"},         // Hangul from letters
      {"\uD558\u11AB", "\uD55C"},               // from a syllable and a letter
      {"\u212B\u2126\u212A", "\u00C5\u03A9K"},  // singletons
      {"\u0958", "\u0915\u093C"},               // a composition exclusion
      {"\uFB01", "\uFB01"},                     // a compatibility character stays
  };
  for (const auto& [text, nfc] : cases) EXPECT_EQ(Nfc(text), nfc) << text;
}

TEST(ToNfcTest, AgreesWithUtf8procOnEveryCharacter) {
  for (utf8proc_int32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const std::string text = Utf8(c);
    ASSERT_EQ(Nfc(text), ReferenceNfc(text)) << std::hex << c;
  }
}

// The claim of the table in unicode.cc: its characters never compose with one before them, and are
// not reordered.
TEST(ToNfcTest, EveryCompositionIsFound) {
  for (utf8proc_int32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    utf8proc_int32_t parts[16];
    int state = 0;
    const auto count = utf8proc_decompose_char(c, parts, 16, UTF8PROC_DECOMPOSE, &state);
    if (count < 2) continue;
    std::string text;
    for (auto i = 0; i < count; ++i) text += Utf8(parts[i]);
    ASSERT_EQ(Nfc(text), ReferenceNfc(text)) << std::hex << c;
  }
  for (utf8proc_int32_t c = 1; c < 0x110000; ++c) {
    if (utf8proc_get_property(c)->combining_class == 0) continue;
    const std::string text = "a" + Utf8(c) + "\u0323\u0301";
    ASSERT_EQ(Nfc(text), ReferenceNfc(text)) << std::hex << c;
  }
}

RC_GTEST_PROP(ToNfcTest, AgreesWithUtf8procOnMixtures, ()) {
  const std::vector<int> points = *rc::gen::container<std::vector<int>>(
      rc::gen::oneOf(rc::gen::inRange(0x41, 0x5B), rc::gen::inRange(0x300, 0x345),
                     rc::gen::inRange(0x1100, 0x11C3), rc::gen::inRange(0x9BE, 0x9D8),
                     rc::gen::inRange(0x3041, 0x309B), rc::gen::inRange(0xAC00, 0xAC40)));
  std::string text;
  for (const int point : points) text += Utf8(point);
  const std::string nfc = Nfc(text);
  RC_ASSERT(nfc == ReferenceNfc(text));
  RC_ASSERT(Nfc(nfc) == nfc);
}

TEST(ToNfcTest, AMegabyteOfMarksInTheWrongOrder) {
  std::string text = "a";
  for (int i = 0; i < 250'000; ++i) text += "\u0301";
  for (int i = 0; i < 250'000; ++i) text += "\u0323";
  const std::string nfc = Nfc(text);
  EXPECT_EQ(nfc.substr(0, 5), "\u1EA1\u0323");  // one mark below composes; the others keep in front
  EXPECT_EQ(nfc.substr(nfc.size() - 2), "\u0301");
}

}  // namespace
}  // namespace signalbox::unicode_test
