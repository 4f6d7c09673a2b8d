# Writes OUT: the recipes in DIR as C++ raw strings. Run with -DDIR=... -DOUT=... whenever one of them changes.
file(GLOB files ${DIR}/*.json)
set(rows "")
foreach(file ${files})
  get_filename_component(name ${file} NAME_WLE)
  file(READ ${file} text)
  string(REGEX MATCH "^// ([^\n]*)" first "${text}")
  string(APPEND rows "    {\"${name}\", R\"recipe(${CMAKE_MATCH_1})recipe\", R\"recipe(${text})recipe\"},\n")
endforeach()
file(WRITE ${OUT} "// Made from recipes/configs by cmake/embed_recipes.cmake.
#include \"nibble/recipes/config/shipped.h\"

namespace nibble {

namespace {
constexpr ShippedRecipe kRecipes[] = {
${rows}};
}  // namespace

std::span<const ShippedRecipe> shipped_recipes() { return kRecipes; }

}  // namespace nibble
")
