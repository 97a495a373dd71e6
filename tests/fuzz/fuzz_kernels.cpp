// libFuzzer target for the kernels that see bytes of a file as they are: `make fuzz`.
#include <vector>

#include "cpu.h"
#include "kernels.h"

// Both paths agree.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t nbytes) {
    const std::vector<std::uint8_t> bytes(data, data + nbytes);
    mdio::plain_only = true;
    const std::uint32_t plain = mdio::crc32c(bytes.data(), nbytes, 7);
    mdio::plain_only = false;
    if (plain != mdio::crc32c(bytes.data(), nbytes, 7)) __builtin_trap();
    return 0;
}
