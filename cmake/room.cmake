# td_room(NAME [DIR dir] [SOURCES ...] [PUBLIC targets...] [PRIVATE targets...])
#
# A room is a static library whose headers are included as "room/file.h". The include path of a
# room is a folder in the build tree that holds one symbolic link, to that room's sources; so a
# file can only include the headers of rooms that its own target links. PRIVATE links do not pass
# include paths on: what engine/ links privately, server/ cannot see.
function(td_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  set(view ${CMAKE_BINARY_DIR}/rooms/${name})
  file(MAKE_DIRECTORY ${view})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${view}/${name} SYMBOLIC)
  add_library(td_${name} STATIC ${ARG_SOURCES})
  target_include_directories(td_${name} PUBLIC ${view})
  target_link_libraries(td_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()
