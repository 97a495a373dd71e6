#include "memory.h"

#include <new>

extern "C" {

mdio_memory* mdio_memory_new(void) { return new (std::nothrow) mdio_memory; }
void mdio_memory_free(mdio_memory* memory) { delete memory; }
const char* mdio_message(const mdio_memory* memory) { return memory->message; }

}  // extern "C"
