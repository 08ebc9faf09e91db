"""Text classification with a transformer on padded arrays."""

import keras
import numpy as np
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(2)


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs):
        attn_output = self.dropout1(self.att(inputs, inputs))
        out1 = self.layernorm1(inputs + attn_output)
        ffn_output = self.dropout2(self.ffn(out1))
        return self.layernorm2(out1 + ffn_output)


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x):
        maxlen = ops.shape(x)[-1]
        return self.token_emb(x) + self.pos_emb(ops.arange(start=0, stop=maxlen, step=1))


vocab_size, maxlen, embed_dim = 100, 20, 16

# Reviews are sequences of word numbers; many high ones make a good review.
y = np.random.randint(0, 2, size=448)
lengths = np.random.randint(8, 30, size=448)
x = [np.random.randint(1 + 20 * label, 80 + 20 * label, size=n) for label, n in zip(y, lengths, strict=True)]
x_train = keras.utils.pad_sequences(x[:320], maxlen=maxlen)
x_val = keras.utils.pad_sequences(x[320:], maxlen=maxlen)
y_train, y_val = y[:320], y[320:]

inputs = layers.Input(shape=(maxlen,))
x = TokenAndPositionEmbedding(maxlen, vocab_size, embed_dim)(inputs)
x = TransformerBlock(embed_dim, num_heads=2, ff_dim=16)(x)
x = layers.GlobalAveragePooling1D()(x)
x = layers.Dropout(0.1)(x)
x = layers.Dense(20, activation="relu")(x)
x = layers.Dropout(0.1)(x)
outputs = layers.Dense(2, activation="softmax")(x)
model = keras.Model(inputs=inputs, outputs=outputs)

model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    x_train,
    y_train,
    batch_size=32,
    epochs=3,
    validation_data=(x_val, y_val),
    callbacks=[PreemptionCallback("runs/transformer")],
)
print("best accuracy", max(history.history["val_accuracy"]))
