# Writes OUT: the recipes in DIR/configs and the table of published models as C++ raw strings. Run with -DDIR=...
# -DOUT=... whenever one of them changes.
file(GLOB files ${DIR}/configs/*.json)
set(rows "")
foreach(file ${files})
  get_filename_component(name ${file} NAME_WLE)
  file(READ ${file} text)
  string(REGEX MATCH "^(// [^\n]*\n)+" about "${text}")
  string(REGEX REPLACE "\n?// " " " about "\n${about}")
  string(STRIP "${about}" about)
  string(REGEX REPLACE "([.]) .*" "\\1" about "${about}")  # its first sentence
  string(APPEND rows "    {\"${name}\", R\"recipe(${about})recipe\", R\"recipe(${text})recipe\"},\n")
endforeach()
file(READ ${DIR}/published_models.json models)
file(WRITE ${OUT} "// Made from recipes/ by cmake/embed_recipes.cmake.
#include \"nibble/recipes/config/shipped.h\"

namespace nibble {

namespace {
constexpr ShippedRecipe kRecipes[] = {
${rows}};
}  // namespace

std::span<const ShippedRecipe> shipped_recipes() { return kRecipes; }

std::string_view published_models_text() { return R\"recipe(${models})recipe\"; }

}  // namespace nibble
")
