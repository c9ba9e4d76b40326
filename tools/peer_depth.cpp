// Measures llama.cpp or ik_llama.cpp at great depths, as a --peer of measure.py: the state of 1,024 tokens is repeated until the context is as
// deep as asked, since computing it would take minutes each time. What the tokens are does not matter to the speed.
//
//     g++ -O2 -o depth peer_depth.cpp -I LLAMA/include -I LLAMA/ggml/include -L LIBRARIES -lllama -lggml -lggml-base -Wl,-rpath,LIBRARIES
//     g++ -O2 -DIK -o depth peer_depth.cpp -I IK/include -I IK/ggml/include -L LIBRARIES -lllama -lggml -Wl,-rpath,LIBRARIES
//     depth MODEL.gguf [-p 512] [-n 64] [-t 2] [-d 0] [-r 3] [--kv-type f16|q8_0] [--no-repack] [--json] [--slices [-b 1]]
//
// Flash attention is on. A rate is the median of the runs; a number of 1 is not measured. Prints one JSON object. With --slices (tools/slices.py) it
// stays: for each line that it reads it computes the prompt, or generates where there is none, `-b` sequences side by side, and prints the seconds
// that took.
#include "llama.h"
#include <sys/resource.h>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#ifdef IK
static void clear(llama_context *context) { llama_kv_cache_clear(context); }
static bool cut(llama_context *context, int sequence, int length) { return llama_kv_cache_seq_rm(context, sequence, length, -1); }
static std::vector<uint8_t> state_of(llama_context *context)
{
    std::vector<uint8_t> state(llama_state_seq_get_size(context, 0, 0));
    llama_state_seq_get_data(context, state.data(), state.size(), 0, 0);
    return state;
}
static bool restore(llama_context *context, const std::vector<uint8_t> &state)
{
    return llama_state_seq_set_data(context, state.data(), state.size(), 0, 0) == state.size();
}
#else
static void clear(llama_context *context) { llama_memory_clear(llama_get_memory(context), true); }
static bool cut(llama_context *context, int sequence, int length) { return llama_memory_seq_rm(llama_get_memory(context), sequence, length, -1); }
static std::vector<uint8_t> state_of(llama_context *context)
{
    std::vector<uint8_t> state(llama_state_seq_get_size(context, 0));
    llama_state_seq_get_data(context, state.data(), state.size(), 0);
    return state;
}
static bool restore(llama_context *context, const std::vector<uint8_t> &state)
{
    return llama_state_seq_set_data(context, state.data(), state.size(), 0) == state.size();
}
#endif

static void fail(const std::string &what)
{
    std::fprintf(stderr, "peer_depth: %s\n", what.c_str());
    std::exit(1);
}

static double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class T> static T take(const uint8_t *&at)
{
    T value;
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
}

template <class T> static void put(std::vector<uint8_t> &to, T value)
{
    const auto *bytes = reinterpret_cast<const uint8_t *>(&value);
    to.insert(to.end(), bytes, bytes + sizeof value);
}

// A state of `cells` tokens, `times` over. Both programs write: some words of their own, the number of cells; of each cell its position, a
// number of sequences and these; whether values are transposed, the number of layers; then of keys and values, layer by layer, the type,
// the bytes of a row and the rows.
static std::vector<uint8_t> repeated(const std::vector<uint8_t> &state, int32_t cells, int32_t times)
{
    const uint8_t *at = state.data();
    for (;; at += 4) {
        int32_t words[2];
        if (at > state.data() + 64)
            fail("no number of cells in the state");
        std::memcpy(words, at, sizeof words);
        if (words[0] == cells && words[1] == 0)
            break;
    }
    std::vector<uint8_t> out(state.data(), at);
    take<int32_t>(at);
    put(out, cells * times);
    const uint8_t *first = at;
    for (int32_t time = 0; time < times; time++) {
        at = first;
        for (int32_t cell = 0; cell < cells; cell++) {
            take<int32_t>(at);
            put(out, time * cells + cell);
            const auto sequences = take<uint32_t>(at);
            put(out, sequences);
            for (uint32_t i = 0; i < sequences; i++)
                put(out, take<int32_t>(at));
        }
    }
    if (take<uint32_t>(at) != 0)
        fail("values are transposed");
    put<uint32_t>(out, 0);
    const auto layers = take<uint32_t>(at);
    put(out, layers);
    for (uint32_t i = 0; i < 2 * layers; i++) {
        put(out, take<int32_t>(at));
        const auto row = take<uint64_t>(at);
        put(out, row);
        for (int32_t time = 0; time < times; time++)
            out.insert(out.end(), at, at + row * cells);
        at += row * cells;
    }
    out.insert(out.end(), at, state.data() + state.size());
    return out;
}

int main(int count, char **words)
{
    enum { FILLED = 1024, STEP = 2048 };
    std::string file, kv = "f16";
    int prompt = 512, generate = 64, threads = 2, depth = 0, runs = 3, repack = 1, slices = 0, sequences = 1;
    for (int i = 1; i < count; i++) {
        const std::string word = words[i];
        int *number = word == "-p" ? &prompt : word == "-n" ? &generate : word == "-t" ? &threads : word == "-d" ? &depth : word == "-r" ? &runs : word == "-b" ? &sequences : nullptr;
        if (number && i + 1 < count)
            *number = std::atoi(words[++i]);
        else if (word == "--kv-type" && i + 1 < count)
            kv = words[++i];
        else if (word == "--no-repack")
            repack = 0;
        else if (word == "--slices")
            slices = 1;
        else if (word[0] != '-')
            file = word;
        else if (word != "--json")
            fail("found " + word + ", wanted MODEL -p -n -t -d -r -b --kv-type --no-repack --json --slices");
    }
    if (sequences < 1 || (sequences > 1 && (!slices || depth > FILLED)))
        fail("-b: found " + std::to_string(sequences) + ", wanted 1, or with --slices more at a depth of 1024 or less");
    if (kv != "f16" && kv != "q8_0")
        fail("--kv-type: found " + kv + ", wanted f16 or q8_0");
    if (depth > FILLED && depth % FILLED)
        fail("-d: found " + std::to_string(depth) + ", wanted a multiple of 1024, or less than that");
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();

    auto how = llama_model_default_params();
    auto with = llama_context_default_params();
#ifdef IK
    how.repack_tensors = repack;
    with.flash_attn = true;
#else
    how.use_extra_bufts = repack;
    with.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
#endif
    const double start = seconds();
    auto *model = llama_model_load_from_file(file.c_str(), how);
    const double load = seconds() - start;
    if (!model)
        fail(file + ": does not load");
    with.n_ctx = (std::max(prompt, depth) + (slices ? 64 : 1) * generate + 320) / 256 * 256 * sequences;
    with.n_batch = STEP;
    with.n_ubatch = 512;
    with.n_threads = with.n_threads_batch = threads;
    with.n_seq_max = sequences;
    with.type_k = with.type_v = kv == "q8_0" ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
    auto *context = llama_init_from_model(model, with);
    if (!context)
        fail("no context");

    auto batch = llama_batch_init(STEP, 0, 1);
    auto decode = [&](int from, int tokens, int sequence = 0) {
        for (int done = 0; done < tokens; done += batch.n_tokens) {
            batch.n_tokens = std::min<int>(STEP, tokens - done);
            for (int i = 0; i < batch.n_tokens; i++) {
                const int position = from + done + i;
                batch.token[i] = 10 + position * 7 % 1000;
                batch.pos[i] = position;
                batch.n_seq_id[i] = 1;
                batch.seq_id[i][0] = sequence;
                batch.logits[i] = done + i == tokens - 1;
            }
            if (llama_decode(context, batch))
                fail("llama_decode failed");
            llama_synchronize(context);
        }
    };
    auto step = [&](int position) {     // a token of every sequence
        batch.n_tokens = sequences;
        for (int i = 0; i < sequences; i++) {
            batch.token[i] = 10 + (position * 7 + i) % 1000;
            batch.pos[i] = position;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = i;
            batch.logits[i] = true;
        }
        if (llama_decode(context, batch))
            fail("llama_decode failed");
        llama_synchronize(context);
    };
    auto fill = [&] {                   // the context of the first sequence, as deep as asked
        clear(context);
        decode(0, std::max(1, std::min<int>(depth, FILLED)));
        std::vector<uint8_t> state = state_of(context);
        if (depth > FILLED) {
            clear(context);
            state = repeated(state, FILLED, depth / FILLED);
            if (!restore(context, state))
                fail("the state was refused");
        }
        return state;
    };
    auto rate = [](std::vector<double> rates) {
        std::sort(rates.begin(), rates.end());
        return rates[rates.size() / 2];
    };
    decode(0, 64);                      // warms up
    if (slices) {
        const int filled = std::max(1, depth);
        int at = filled;
        fill();
        for (int sequence = 1; sequence < sequences; sequence++)
            decode(0, filled, sequence);
        std::puts("ready");
        for (std::fflush(stdout); std::getchar() != EOF; std::fflush(stdout)) {
            if (prompt > 1)
                clear(context);
            bool whole = prompt <= 1;
            for (int sequence = 0; whole && sequence < sequences; sequence++)
                whole = cut(context, sequence, filled);
            at = whole ? filled : at;   // recurrent state cannot be cut: on from where it is
            const double begun = seconds();
            for (int i = 0; prompt <= 1 && i < generate; i++)
                step(at++);
            if (prompt > 1)
                decode(0, prompt);
            std::printf("%.6f\n", seconds() - begun);
        }
        return 0;
    }
    std::printf("{");
    std::vector<double> rates;
    for (int run = 0; prompt > 1 && run < runs; run++) {
        clear(context);
        const double begun = seconds();
        decode(0, prompt);
        rates.push_back(prompt / (seconds() - begun));
    }
    if (!rates.empty())
        std::printf("\"pp_tps\": %.3f, ", rate(rates));
    rates.clear();
    if (generate > 1) {
        const std::vector<uint8_t> state = fill();
        for (int run = 0; run < runs; run++) {
            clear(context);
            if (depth && !restore(context, state))
                fail("the state was refused");
            decode(depth, 1);
            const double begun = seconds();
            for (int i = 1; i <= generate; i++)
                decode(depth + i, 1);
            rates.push_back(generate / (seconds() - begun));
        }
        std::printf("\"tg_tps\": %.3f, ", rate(rates));
    }
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    std::printf("\"load_s\": %.3f, \"peak_rss_mb\": %.0f}\n", load, used.ru_maxrss / 1024.0);
}
