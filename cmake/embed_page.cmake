# Puts the parts of the page in one document, and that in a source file: cmake -D PARTS=DIR -D OUT=FILE -P this.

# The base64 form of a SHA-256, as a Content-Security-Policy spells it.
function(policy_hash text result)
  set(digits "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  string(SHA256 hex "${text}")
  set(hash "")
  # Three bytes are four digits; the 32 bytes end with two, and so with a zero byte that is not there.
  foreach(start RANGE 0 60 6)
    string(SUBSTRING "${hex}00" ${start} 6 bytes)
    foreach(shift 18 12 6 0)
      math(EXPR digit "(0x${bytes} >> ${shift}) & 63")
      string(SUBSTRING ${digits} ${digit} 1 digit)
      string(APPEND hash ${digit})
    endforeach()
  endforeach()
  string(SUBSTRING ${hash} 0 43 hash)
  set(${result} "'sha256-${hash}='" PARENT_SCOPE)
endfunction()

file(READ ${PARTS}/index.html html)
file(READ ${PARTS}/page.css style)
set(script "")
foreach(part common chat live)
  file(READ ${PARTS}/${part}.js text)
  string(APPEND script "${text}")
endforeach()
policy_hash("${style}" style_hash)
policy_hash("${script}" script_hash)
string(REPLACE "@STYLE@" "${style}" html "${html}")
string(REPLACE "@SCRIPT@" "${script}" html "${html}")
string(CONCAT policy
  "default-src 'none'; script-src ${script_hash}; style-src ${style_hash}; connect-src 'self'; "
  "img-src blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")

file(WRITE ${OUT} "// Written by cmake/embed_page.cmake.
#include \"signalbox/server/page.h\"

namespace signalbox {

const std::string& PageHtml() {
  static const std::string kHtml = R\"page(${html})page\";
  return kHtml;
}

const std::string& PagePolicy() {
  static const std::string kPolicy = R\"page(${policy})page\";
  return kPolicy;
}

}  // namespace signalbox
")
