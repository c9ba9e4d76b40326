// Embeds texts with llama.cpp, as a --peer of measure_embeddings.py.
//
//     g++ -O2 -o embed peer_embeddings.cpp -I LLAMA/include -I LLAMA/ggml/include -L LIBRARIES -lllama -lggml -lggml-base -Wl,-rpath,LIBRARIES
//     embed MODEL.gguf TEXTS.txt [-t 2] [-u 2048] [-s 64] [--no-repack]
//
// TEXTS.txt has a text a line. For each line that it reads from its input it embeds them all, as many in one batch as -u tokens and -s texts
// allow, and prints the seconds that took from text to normalised vectors, and the seconds of processor time. Flash attention is as llama.cpp
// chooses.
#include "llama.h"
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

static void fail(const std::string &what)
{
    std::fprintf(stderr, "peer_embeddings: %s\n", what.c_str());
    std::exit(1);
}

static double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int main(int count, char **words)
{
    std::vector<std::string> files, texts;
    int threads = 2, most = 2048, together = 64, repack = 1;
    for (int i = 1; i < count; i++) {
        const std::string word = words[i];
        int *number = word == "-t" ? &threads : word == "-u" ? &most : word == "-s" ? &together : nullptr;
        if (number && i + 1 < count)
            *number = std::atoi(words[++i]);
        else if (word == "--no-repack")
            repack = 0;
        else
            files.push_back(word);
    }
    if (files.size() != 2)
        fail("wanted MODEL.gguf TEXTS.txt");
    std::ifstream lines(files[1]);
    for (std::string line; std::getline(lines, line);)
        texts.push_back(line);

    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    auto how = llama_model_default_params();
    how.use_extra_bufts = repack;
    auto *model = llama_model_load_from_file(files[0].c_str(), how);
    if (!model)
        fail(files[0] + ": does not load");
    auto with = llama_context_default_params();
    with.n_ctx = most;
    with.n_batch = with.n_ubatch = most;
    with.n_threads = with.n_threads_batch = threads;
    with.n_seq_max = together;
    with.embeddings = true;
    with.kv_unified = true;
    auto *context = llama_init_from_model(model, with);
    if (!context)
        fail("no context");
    if (llama_pooling_type(context) == LLAMA_POOLING_TYPE_NONE)
        fail("the file names no pooling");

    const auto *vocab = llama_model_get_vocab(model);
    const int width = llama_model_n_embd(model);
    auto batch = llama_batch_init(most, 0, 1);
    std::vector<float> vectors(texts.size() * width);
    size_t first = 0, next = 0;
    auto flush = [&] {
        if (!batch.n_tokens)
            return;
        if (auto *memory = llama_get_memory(context))
            llama_memory_clear(memory, true);
        if (llama_model_has_encoder(model) ? llama_encode(context, batch) : llama_decode(context, batch))
            fail("the batch was refused");
        for (; first < next; first++) {
            const float *found = llama_get_embeddings_seq(context, first % together);
            double square = 0;
            for (int i = 0; i < width; i++)
                square += double(found[i]) * found[i];
            for (int i = 0; i < width; i++)
                vectors[first * width + i] = found[i] / std::sqrt(square);
        }
        batch.n_tokens = 0;
    };
    std::vector<llama_token> ids(most);
    auto all = [&] {
        first = 0;
        for (next = 0; next < texts.size(); next++) {
            const int tokens = llama_tokenize(vocab, texts[next].c_str(), texts[next].size(), ids.data(), most, true, false);
            if (tokens < 0)
                fail("a text is longer than -u");
            if (batch.n_tokens + tokens > most || next - first == size_t(together))
                flush();
            for (int i = 0; i < tokens; i++) {
                const int at = batch.n_tokens++;
                batch.token[at] = ids[i];
                batch.pos[at] = i;
                batch.n_seq_id[at] = 1;
                batch.seq_id[at][0] = next % together;
                batch.logits[at] = true;
            }
        }
        flush();
    };
    all();
    std::puts("ready");
    for (std::fflush(stdout); std::getchar() != EOF; std::fflush(stdout)) {
        const double begun = seconds();
        const clock_t used = clock();
        all();
        std::printf("%.6f %.6f\n", seconds() - begun, double(clock() - used) / CLOCKS_PER_SEC);
    }
}
