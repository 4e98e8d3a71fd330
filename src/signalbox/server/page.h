// SPDX-License-Identifier: Apache-2.0
//
// The page at `/`: a chat and the server's live numbers, one HTML document that loads nothing else
// and asks only the server it came from. Its parts are the files in page/; cmake/embed_page.cmake
// puts them together and writes what this header declares.
//
//   exchange->Send({.content_type = "text/html; charset=utf-8",
//                   .headers = {{"Content-Security-Policy", PagePolicy()}},
//                   .body = PageHtml()});
#pragma once

#include <string>

namespace signalbox {

const std::string& PageHtml();
// The Content-Security-Policy: it runs the page's own script and style, by their hashes, and
// nothing else.
const std::string& PagePolicy();

}  // namespace signalbox
