"""Sequence-to-sequence transformer: two TextVectorization layers, dictionaries of inputs, masks, RMSprop."""

import random

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras.layers import TextVectorization

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(77)

vocab_size, sequence_length, batch_size = 40, 8, 16
embed_dim, latent_dim, num_heads = 16, 32, 2

dictionary = {"the": "la", "a": "una", "cat": "gata", "dog": "perra", "sees": "ve", "likes": "quiere"}
dictionary |= {"small": "chica", "big": "grande", "red": "roja", "old": "vieja"}
text_pairs = []
for _ in range(400):
    sentence = random.choices(list(dictionary), k=random.randint(3, 6))
    spanish = "[start] " + " ".join(dictionary[word] for word in sentence) + " [end]"
    text_pairs.append((" ".join(sentence), spanish))
random.shuffle(text_pairs)
num_val_samples = int(0.15 * len(text_pairs))
train_pairs, val_pairs = text_pairs[num_val_samples:], text_pairs[:num_val_samples]


def custom_standardization(input_string):
    return tf.strings.regex_replace(tf.strings.lower(input_string), "[!.,¿]", "")


eng_vectorization = TextVectorization(
    max_tokens=vocab_size, output_mode="int", output_sequence_length=sequence_length
)
spa_vectorization = TextVectorization(
    max_tokens=vocab_size,
    output_mode="int",
    output_sequence_length=sequence_length + 1,
    standardize=custom_standardization,
)
eng_vectorization.adapt([pair[0] for pair in train_pairs])
spa_vectorization.adapt([pair[1] for pair in train_pairs])


def format_dataset(eng, spa):
    eng = eng_vectorization(eng)
    spa = spa_vectorization(spa)
    return {"encoder_inputs": eng, "decoder_inputs": spa[:, :-1]}, spa[:, 1:]


def make_dataset(pairs):
    eng_texts, spa_texts = zip(*pairs, strict=True)
    dataset = tf.data.Dataset.from_tensor_slices((list(eng_texts), list(spa_texts)))
    dataset = dataset.batch(batch_size)
    dataset = dataset.map(format_dataset)
    return dataset.cache().shuffle(2048).prefetch(16)


train_ds = make_dataset(train_pairs)
val_ds = make_dataset(val_pairs)


class TransformerEncoder(layers.Layer):
    def __init__(self, embed_dim, dense_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.dense_proj = keras.Sequential(
            [layers.Dense(dense_dim, activation="relu"), layers.Dense(embed_dim)]
        )
        self.layernorm_1 = layers.LayerNormalization()
        self.layernorm_2 = layers.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        padding_mask = None if mask is None else ops.cast(mask[:, None, :], dtype="int32")
        attention_output = self.attention(query=inputs, value=inputs, key=inputs, attention_mask=padding_mask)
        proj_input = self.layernorm_1(inputs + attention_output)
        return self.layernorm_2(proj_input + self.dense_proj(proj_input))


class PositionalEmbedding(layers.Layer):
    def __init__(self, sequence_length, vocab_size, embed_dim, **kwargs):
        super().__init__(**kwargs)
        self.token_embeddings = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.position_embeddings = layers.Embedding(input_dim=sequence_length, output_dim=embed_dim)

    def call(self, inputs):
        positions = ops.arange(0, ops.shape(inputs)[-1], 1)
        return self.token_embeddings(inputs) + self.position_embeddings(positions)

    def compute_mask(self, inputs, mask=None):
        return ops.not_equal(inputs, 0)


class TransformerDecoder(layers.Layer):
    def __init__(self, embed_dim, latent_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.attention_1 = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.attention_2 = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.dense_proj = keras.Sequential(
            [layers.Dense(latent_dim, activation="relu"), layers.Dense(embed_dim)]
        )
        self.layernorm_1 = layers.LayerNormalization()
        self.layernorm_2 = layers.LayerNormalization()
        self.layernorm_3 = layers.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        inputs, encoder_outputs = inputs
        encoder_outputs_mask = None if mask is None else mask[1]
        attention_output_1 = self.attention_1(query=inputs, value=inputs, key=inputs, use_causal_mask=True)
        out_1 = self.layernorm_1(inputs + attention_output_1)
        attention_output_2 = self.attention_2(
            query=out_1, value=encoder_outputs, key=encoder_outputs, key_mask=encoder_outputs_mask
        )
        out_2 = self.layernorm_2(out_1 + attention_output_2)
        return self.layernorm_3(out_2 + self.dense_proj(out_2))


encoder_inputs = keras.Input(shape=(None,), dtype="int64", name="encoder_inputs")
x = PositionalEmbedding(sequence_length, vocab_size, embed_dim)(encoder_inputs)
encoder_outputs = TransformerEncoder(embed_dim, latent_dim, num_heads)(x)
decoder_inputs = keras.Input(shape=(None,), dtype="int64", name="decoder_inputs")
x = PositionalEmbedding(sequence_length, vocab_size, embed_dim)(decoder_inputs)
x = TransformerDecoder(embed_dim, latent_dim, num_heads)([x, encoder_outputs])
x = layers.Dropout(0.5)(x)
decoder_outputs = layers.Dense(vocab_size, activation="softmax")(x)
transformer = keras.Model(
    {"encoder_inputs": encoder_inputs, "decoder_inputs": decoder_inputs}, decoder_outputs
)

transformer.compile(
    "rmsprop",
    loss=keras.losses.SparseCategoricalCrossentropy(ignore_class=0),
    metrics=["accuracy"],
)
transformer.fit(
    train_ds, epochs=2, validation_data=val_ds, callbacks=[PreemptionCallback("runs/translation")]
)

tokenized = {"encoder_inputs": eng_vectorization(["the cat sees the dog"])}
tokenized["decoder_inputs"] = spa_vectorization(["[start]"])[:, :-1]
predictions = transformer.predict(tokenized, verbose=0)
print(spa_vectorization.get_vocabulary()[int(np.argmax(predictions[0, 0]))])
