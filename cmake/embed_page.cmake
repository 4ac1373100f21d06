# cmake -DIN=page.html -DOUT=page_data.c -P embed_page.cmake
#
# Turns the page into a C array, with its ETag and the Content-Security-Policy that lets its own <style> and <script> run and
# nothing else: by their SHA-256, which a policy wants in base64. Indentation and comments are left out.
file(READ ${IN} page)
string(REGEX REPLACE "\n +" "\n" page "${page}")
string(REGEX REPLACE "<!--[^>]*-->\n" "" page "${page}")
string(REGEX REPLACE "\n//[^\n]*" "" page "${page}")
string(REGEX REPLACE "\n\n+" "\n" page "${page}")
file(WRITE ${OUT}.html "${page}")
file(READ ${OUT}.html hex HEX)

# sha256_base64(TAG VAR): of what stands between <TAG> and </TAG>
function(sha256_base64 tag result)
  string(FIND "${page}" "<${tag}>" begin)
  string(FIND "${page}" "<${tag}>" last REVERSE)
  string(FIND "${page}" "</${tag}>" end)
  if(begin LESS 0 OR end LESS begin OR NOT begin EQUAL last)
    message(FATAL_ERROR "${IN} must have one <${tag}>")
  endif()
  string(LENGTH "<${tag}>" n)
  math(EXPR begin "${begin} + ${n}")
  math(EXPR n "${end} - ${begin}")
  string(SUBSTRING "${page}" ${begin} ${n} text)
  string(SHA256 digest "${text}")
  set(alphabet ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  set(base64 "")
  foreach(at RANGE 0 60 6) # six hex digits are four of base64; 64 digits leave four over
    string(SUBSTRING "${digest}00" ${at} 6 group)
    foreach(shift 18 12 6 0)
      math(EXPR i "(0x${group} >> ${shift}) & 63")
      string(SUBSTRING ${alphabet} ${i} 1 c)
      string(APPEND base64 ${c})
    endforeach()
  endforeach()
  string(SUBSTRING ${base64} 0 43 base64)
  set(${result} "${base64}=" PARENT_SCOPE)
endfunction()

sha256_base64(style style)
sha256_base64(script script)
file(SHA256 ${OUT}.html etag)
string(SUBSTRING ${etag} 0 32 etag)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "/* made from ${IN} by cmake/embed_page.cmake */
#include \"server/page.h\"
const char td_page_etag[] = \"\\\"${etag}\\\"\";
const char td_page_policy[] =
  \"default-src 'none'; script-src 'sha256-${script}'; style-src 'sha256-${style}'; img-src data:; connect-src 'self'; \"
  \"base-uri 'none'; form-action 'none'; frame-ancestors 'none'\";
const unsigned char td_page[] = {
${bytes}};
const size_t td_page_bytes = sizeof td_page;
")
