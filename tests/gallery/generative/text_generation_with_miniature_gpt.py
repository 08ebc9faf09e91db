"""Text generation with a miniature GPT: causal attention, TextVectorization, a callback that samples text."""

import random
import string

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras.layers import TextVectorization

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(1234)

max_tokens, maxlen, embed_dim, num_heads, feed_forward_dim = 60, 12, 16, 2, 16

# Write small reviews, one a line, and read them back as text files are read.
words = [
    "the",
    "film",
    "was",
    "truly",
    "great",
    "fun",
    "a",
    "bad",
    "plot",
    "but",
    "fine",
    "acting",
    "with",
    "end",
]
with open("reviews.txt", "w") as file:
    for _ in range(256):
        file.write(" ".join(random.choices(words, k=16)) + "!<br />\n")

text_ds = tf.data.TextLineDataset(["reviews.txt"])
text_ds = text_ds.shuffle(buffer_size=256)
text_ds = text_ds.batch(16)


def custom_standardization(input_string):
    """Remove html line-break tags and handle punctuation"""
    lowercased = tf.strings.lower(input_string)
    stripped_html = tf.strings.regex_replace(lowercased, "<br />", " ")
    return tf.strings.regex_replace(stripped_html, f"([{string.punctuation}])", r" \1")


vectorize_layer = TextVectorization(
    standardize=custom_standardization,
    max_tokens=max_tokens,
    output_mode="int",
    output_sequence_length=maxlen + 1,
)
vectorize_layer.adapt(text_ds)
vocab = vectorize_layer.get_vocabulary()
vocab_size = len(vocab)


def prepare_lm_inputs_labels(text):
    """Shift word sequences by 1 position so that the target for position (i) is word at position (i+1)."""
    tokenized_sentences = vectorize_layer(tf.expand_dims(text, -1))
    return tokenized_sentences[:, :-1], tokenized_sentences[:, 1:]


text_ds = text_ds.map(prepare_lm_inputs_labels, num_parallel_calls=tf.data.AUTOTUNE)
text_ds = text_ds.prefetch(tf.data.AUTOTUNE)


def causal_attention_mask(batch_size, n_dest, n_src, dtype):
    i = ops.arange(n_dest)[:, None]
    j = ops.arange(n_src)
    mask = ops.reshape(ops.cast(i >= j - n_src + n_dest, dtype), [1, n_dest, n_src])
    return ops.tile(mask, [batch_size, 1, 1])


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads, embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs):
        input_shape = ops.shape(inputs)
        mask = causal_attention_mask(input_shape[0], input_shape[1], input_shape[1], "bool")
        attention_output = self.dropout1(self.att(inputs, inputs, attention_mask=mask))
        out1 = self.layernorm1(inputs + attention_output)
        return self.layernorm2(out1 + self.dropout2(self.ffn(out1)))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x):
        positions = ops.arange(0, ops.shape(x)[-1], 1)
        return self.token_emb(x) + self.pos_emb(positions)


inputs = layers.Input(shape=(maxlen,), dtype="int32")
x = TokenAndPositionEmbedding(maxlen, vocab_size, embed_dim)(inputs)
x = TransformerBlock(embed_dim, num_heads, feed_forward_dim)(x)
outputs = layers.Dense(vocab_size)(x)
model = keras.Model(inputs=inputs, outputs=[outputs, x])
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss=[loss_fn, None])  # No loss on the word embeddings of the transformer block


class TextGenerator(keras.callbacks.Callback):
    """Generates text from a trained model by sampling from the top-k tokens."""

    def __init__(self, max_tokens, start_tokens, index_to_word, top_k=5):
        self.max_tokens = max_tokens
        self.start_tokens = start_tokens
        self.index_to_word = index_to_word
        self.k = top_k

    def sample_from(self, logits):
        logits, indices = ops.top_k(logits, k=self.k, sorted=True)
        preds = keras.activations.softmax(ops.expand_dims(logits, 0))
        preds = np.asarray(preds[0]).astype("float64")
        return np.random.choice(np.asarray(indices), p=preds / preds.sum())

    def on_epoch_end(self, epoch, logs=None):
        tokens = list(self.start_tokens)
        while len(tokens) < self.max_tokens:
            padded = np.array([tokens + [0] * (maxlen - len(tokens))])
            y, _ = self.model.predict(padded, verbose=0)
            tokens.append(self.sample_from(y[0][len(tokens) - 1]))
        print("generated text:\n" + " ".join(self.index_to_word[token] for token in tokens))


word_to_index = {word: index for index, word in enumerate(vocab)}
start_tokens = [word_to_index[word] for word in ["the", "film", "was"]]
text_gen_callback = TextGenerator(8, start_tokens, vocab)
model.fit(text_ds, verbose=2, epochs=3, callbacks=[text_gen_callback, PreemptionCallback("runs/gpt")])
