#include "run.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

namespace mdio::xtc {

namespace {

void decode_one(Decoder& decoder, const Run& run, std::int64_t i) {
    const std::int64_t begin = run.offsets[i] - run.offsets[0];
    const std::int64_t nbytes = run.offsets[i + 1] - run.offsets[i];
    const Header header =
        decoder.decode(run.data + begin, static_cast<std::size_t>(nbytes), run.n_atoms,
                       run.selection, run.positions + run.stride * i);
    std::copy(header.vectors_nm, header.vectors_nm + 9, run.vectors_nm + 9 * i);
    run.time_ps[i] = header.time_ps;
    run.step[i] = header.step;
}

}  // namespace

void decode_run(const Run& run, int n_threads) {
    for (std::int64_t i = 0; i < run.n_frames; ++i)
        if (run.offsets[i] >= run.offsets[i + 1])
            throw std::invalid_argument(
                located(run.first + i, run.offsets[i], "the index has no bytes for it"));

    std::atomic<std::int64_t> next{0};
    std::mutex mutex;
    std::int64_t failed = run.n_frames;
    std::string message;
    const auto work = [&] {
        Decoder decoder;
        for (std::int64_t i = next++; i < run.n_frames; i = next++) {
            try {
                decode_one(decoder, run, i);
            } catch (const std::invalid_argument& error) {
                const std::lock_guard<std::mutex> lock(mutex);
                if (i < failed) {
                    failed = i;
                    message = error.what();
                }
                next = run.n_frames;  // those that are being decoded are the earlier ones
                return;
            }
        }
    };

    std::vector<std::thread> threads;
    const std::int64_t wanted = std::min<std::int64_t>(n_threads, run.n_frames);
    try {
        while (static_cast<std::int64_t>(threads.size()) + 1 < wanted) threads.emplace_back(work);
    } catch (const std::system_error&) {
        // No more threads to be had: those that there are do the work.
    }
    work();
    for (std::thread& thread : threads) thread.join();
    if (failed < run.n_frames)
        throw std::invalid_argument(located(run.first + failed, run.offsets[failed], message));
}

}  // namespace mdio::xtc
