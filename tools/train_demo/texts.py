"""Sentences that the demo model learns: facts about ds4c and the model family, small talk, phrasings."""

FACTS: tuple[tuple[str, str], ...] = (
    (
        "ds4c",
        "ds4c is a compiler, a runtime and a server for DeepSeek-V4 models. It can rewind a session "
        "to any earlier token.",
    ),
    (
        "a session",
        "A session is one running conversation. It owns the token history and all model state: raw "
        "rows, compressed rows, rolling buffers and the sampler state.",
    ),
    (
        "rewind",
        "Rewind moves a session back to an earlier position without running the model again. The "
        "state after a rewind equals the state before the dropped tokens were read.",
    ),
    (
        "a fork",
        "A fork makes a second session from the same prefix. The shared rows are kept once, and each "
        "session then grows on its own.",
    ),
    (
        "a snapshot",
        "A snapshot is a saved copy of the state at one position. It holds the live ring rows, and it "
        "shares the compressed rows, which never change.",
    ),
    (
        "the compressor",
        "The compressor turns a window of tokens into one row. Each channel takes its own weighted "
        "mean of the rows in the window.",
    ),
    (
        "a compressed row",
        "A compressed row stands for a whole window of tokens. With ratio 4 it covers eight tokens, "
        "and with ratio 128 it covers one hundred and twenty-eight.",
    ),
    (
        "the raw window",
        "The raw window is the set of the latest tokens that every layer sees without compression.",
    ),
    (
        "the lightning indexer",
        "The lightning indexer scores the compressed rows of a ratio 4 layer and picks the best of "
        "them for attention.",
    ),
    (
        "top-k selection",
        "Top-k selection keeps only the compressed rows with the highest index scores, so attention "
        "stays cheap when the context is long.",
    ),
    (
        "hyper-connections",
        "Hyper-connections keep four copies of the residual stream. A small matrix mixes the copies "
        "at every layer.",
    ),
    (
        "Sinkhorn normalisation",
        "Sinkhorn normalisation divides rows and columns in turn until the mixing matrix is nearly "
        "doubly stochastic.",
    ),
    (
        "the attention sink",
        "The attention sink is a learned logit with no value. It lets a head attend to nothing.",
    ),
    (
        "the inverse rotation",
        "The inverse rotation turns the output of attention back by the angle of the query, because "
        "the keys are also the values.",
    ),
    (
        "the position ring",
        "The position ring stores rows by absolute position, so a rewind only has to set the position.",
    ),
    (
        "the overlap",
        "The overlap means that a ratio 4 row also reads the previous window, so each token counts in "
        "two rows.",
    ),
    (
        "a mixture of experts",
        "A mixture of experts holds many small networks. The router sends each token to a few of them.",
    ),
    (
        "the router",
        "The router gives each expert a score, adds a bias for the choice, and uses the plain score "
        "as the weight.",
    ),
    (
        "a hash layer",
        "A hash layer picks experts by the token id alone. No score decides the choice.",
    ),
    (
        "the shared expert",
        "The shared expert runs for every token and is added to the chosen experts.",
    ),
    (
        "YaRN",
        "YaRN stretches the slow rotary frequencies so that the model can read long texts.",
    ),
    (
        "MTP",
        "MTP is a small extra block that guesses the token after the next one. The main model checks "
        "the guess.",
    ),
    (
        "DSpark",
        "DSpark is a drafter that guesses a block of five tokens at once from captured features of "
        "the main model.",
    ),
    (
        "speculative decoding",
        "Speculative decoding drafts several tokens cheaply and lets the main model check them in one "
        "pass. Wrong tokens are rewound.",
    ),
    (
        "the acceptance rate",
        "The acceptance rate is the share of drafted tokens that the main model keeps.",
    ),
    (
        "the Markov head",
        "The Markov head adds a bias for each token that depends on the token before it.",
    ),
    (
        "the confidence head",
        "The confidence head estimates whether a drafted token will be accepted.",
    ),
    (
        "DSML",
        "DSML is the markup for tool calls. It names the tool and lists one parameter per line.",
    ),
    (
        "a tool call",
        "A tool call is a block in which the model names a tool and its parameters. The client runs "
        "the tool and sends the result back.",
    ),
    (
        "a tool result",
        "A tool result is the text that a tool returns. It is put into the user turn.",
    ),
    (
        "thinking mode",
        "In thinking mode the model writes its reasoning before the answer. The reasoning ends with a "
        "closing tag.",
    ),
    (
        "the KV cache",
        "The KV cache keeps the rows of earlier tokens so that they need not be computed again.",
    ),
    (
        "prefill",
        "Prefill reads the whole prompt in large chunks and fills the state.",
    ),
    (
        "decode",
        "Decode produces one token at a time and updates the state after each.",
    ),
    (
        "a prefix cache",
        "A prefix cache keeps snapshots of common prompts, so a new request can start from the "
        "longest known prefix.",
    ),
    (
        "a safe point",
        "A safe point is a position to which a session can return at once. Multiples of one hundred "
        "and twenty-eight need the least memory.",
    ),
    (
        "the graph IR",
        "The graph IR is the form in which the compiler describes one step of the model: pure "
        "operations on weights and named state.",
    ),
    (
        "operator fusion",
        "Operator fusion joins several small operations into one kernel, so that data stays in the cache.",
    ),
    (
        "q8_0",
        "q8_0 stores thirty-two weights as bytes with one scale.",
    ),
    (
        "GGUF",
        "GGUF is a file format that holds metadata and quantised tensors in one file.",
    ),
    (
        "gRPC",
        "gRPC is the protocol of the server. A client opens a stream and receives tokens as they are made.",
    ),
    (
        "a checkpoint",
        "A checkpoint is the set of files that hold the weights of a model.",
    ),
)
"""(subject, what the model says about it)."""

FACT_QUESTIONS = (
    "What is {}?",
    "Explain {}.",
    "Tell me about {}.",
    "What do you know about {}?",
    "Define {}.",
    "Can you explain {}?",
    "Please explain {} in short.",
)

HELD_OUT_QUESTIONS = (
    "Describe {}.",
    "Could you tell me what {} is?",
)
"""Phrasings of the same questions that are measured, never trained."""

SMALL_TALK: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        (
            "Hello!",
            "Hi.",
            "Hello",
            "Good morning.",
            "Hey there!",
        ),
        (
            "Hello! How can I help you?",
            "Hello! Ask me about ds4c, or give me a sum.",
        ),
    ),
    (
        (
            "Who are you?",
            "What are you?",
            "What is your name?",
        ),
        ("I am the ds4c demo model, a very small DeepSeek-V4. I can call tools and explain ds4c.",),
    ),
    (
        (
            "Thank you.",
            "Thanks!",
            "Thanks a lot.",
        ),
        ("You are welcome.",),
    ),
    (
        (
            "Goodbye.",
            "Bye!",
            "See you.",
        ),
        ("Goodbye!",),
    ),
    (
        (
            "What can you do?",
            "How can you help me?",
            "Help.",
        ),
        ("I can do sums, convert units, add days to a date, look up names, and explain ds4c.",),
    ),
)
"""(ways to say it, answers)."""

SYLLABLES = (
    "ba be bo bra da del do dra fa fen ga gor ha hel ja ka kel ko la lim lo ma mel mo na nor o "
    "pa pel ra rin ro sa sel so ta ten to tra va ven vi wa wen ya zo "
).split()
"""Names of people and towns are made of these."""

TRADES = (
    "keeps bees",
    "repairs clocks",
    "bakes bread",
    "draws maps",
    "builds boats",
    "teaches chess",
    "prints books",
    "grows pears",
    "mends nets",
    "sells tea",
    "writes songs",
    "breeds horses",
)

UNITS: tuple[tuple[str, str, float], ...] = (
    ("km", "m", 1000),
    ("m", "cm", 100),
    ("kg", "g", 1000),
    ("h", "min", 60),
    ("min", "s", 60),
    ("GB", "MB", 1024),
    ("MB", "KB", 1024),
    ("miles", "km", 1.609),
    ("feet", "inches", 12),
    ("days", "h", 24),
    ("weeks", "days", 7),
    ("l", "ml", 1000),
)
"""(from, to, factor)."""
