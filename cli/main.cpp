#include <cstdio>

int main() {
  std::puts("nibble " NIBBLE_VERSION);
  return 0;
}
