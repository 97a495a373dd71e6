#include "file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace mdio::xtc {

namespace {

// A page of the file, so that small frames cost no call each.
class Window {
  public:
    explicit Window(int fd) : fd_(fd) {}

    // Bytes from `offset` on: HEADER_NBYTES or more, fewer only at the end of the file.
    const std::uint8_t* at(std::int64_t offset, std::size_t& nbytes) {
        if (offset < begin_ || offset + std::int64_t(HEADER_NBYTES) > begin_ + size_) {
            begin_ = offset;
            size_ = 0;
            while (size_ < std::int64_t(HEADER_NBYTES)) {
                const auto got = pread(fd_, bytes_ + size_, sizeof bytes_ - size_, begin_ + size_);
                if (got < 0 && errno == EINTR) continue;
                if (got < 0) throw std::system_error(errno, std::generic_category());
                if (got == 0) break;
                size_ += got;
            }
        }
        nbytes = static_cast<std::size_t>(begin_ + size_ - offset);
        return bytes_ + (offset - begin_);
    }

  private:
    int fd_;
    std::int64_t begin_ = 0;
    std::int64_t size_ = 0;
    std::uint8_t bytes_[4096];
};

Header header_at(Window& window, std::int64_t frame, std::int64_t offset, std::int64_t n_atoms) {
    std::size_t nbytes = 0;
    const std::uint8_t* bytes = window.at(offset, nbytes);
    try {
        return parse_header(bytes, nbytes, n_atoms);
    } catch (const std::invalid_argument& error) {
        throw std::invalid_argument(located(frame, offset, error.what()));
    }
}

}  // namespace

Frames scan(int fd, std::int64_t nbytes) {
    Frames frames;
    Window window(fd);
    std::int64_t offset = 0;
    while (offset < nbytes) {
        const auto frame = static_cast<std::int64_t>(frames.offsets.size());
        const Header header = header_at(window, frame, offset, frames.n_atoms);
        if (header.nbytes > static_cast<std::uint64_t>(nbytes - offset))
            throw std::invalid_argument(
                located(frame, offset,
                        "it has " + std::to_string(header.nbytes) + " bytes, but the file ends after " +
                            std::to_string(nbytes - offset)));
        frames.n_atoms = header.n_atoms;
        frames.offsets.push_back(offset);
        offset += static_cast<std::int64_t>(header.nbytes);
    }
    return frames;
}

void read_headers(int fd, std::int64_t first, const std::int64_t* offsets, std::int64_t n_frames,
                  std::int64_t n_atoms, float* vectors_nm, double* time_ps, std::int64_t* step) {
    Window window(fd);
    for (std::int64_t i = 0; i < n_frames; ++i) {
        const Header header = header_at(window, first + i, offsets[i], n_atoms);
        const std::int64_t nbytes = offsets[i + 1] - offsets[i];
        if (header.nbytes != static_cast<std::uint64_t>(nbytes))
            throw std::invalid_argument(located(
                first + i, offsets[i], wrong_nbytes(header.nbytes, nbytes)));
        std::copy(header.vectors_nm, header.vectors_nm + 9, vectors_nm + 9 * i);
        time_ps[i] = header.time_ps;
        step[i] = header.step;
    }
}

}  // namespace mdio::xtc
