"""Text classification from folders of files: TextVectorization adapted and applied in the input pipeline."""

import os
import random
import re
import string

import keras
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(1337)

batch_size, max_features, embedding_dim, sequence_length = 16, 200, 16, 24

# Write positive and negative reviews, each in a file of its own.
good, bad = ["lovely", "great", "fine", "warm", "clever"], ["poor", "dull", "cold", "awful", "weak"]
common = ["the", "a", "film", "plot", "actor", "scene", "with", "and", "of", "<br />"]
for split, count in (("train", 150), ("test", 40)):
    for label, own in (("pos", good), ("neg", bad)):
        os.makedirs(f"aclImdb/{split}/{label}", exist_ok=True)
        for i in range(count):
            with open(f"aclImdb/{split}/{label}/{i}.txt", "w") as file:
                file.write(" ".join(random.choices(common, k=15) + random.choices(own, k=5)) + "!")

raw_train_ds, raw_val_ds = keras.utils.text_dataset_from_directory(
    "aclImdb/train", batch_size=batch_size, validation_split=0.2, subset="both", seed=1337
)
raw_test_ds = keras.utils.text_dataset_from_directory("aclImdb/test", batch_size=batch_size)


def custom_standardization(input_data):
    lowercase = tf.strings.lower(input_data)
    stripped_html = tf.strings.regex_replace(lowercase, "<br />", " ")
    return tf.strings.regex_replace(stripped_html, f"[{re.escape(string.punctuation)}]", "")


vectorize_layer = layers.TextVectorization(
    standardize=custom_standardization,
    max_tokens=max_features,
    output_mode="int",
    output_sequence_length=sequence_length,
)
vectorize_layer.adapt(raw_train_ds.map(lambda x, y: x))


def vectorize_text(text, label):
    return vectorize_layer(tf.expand_dims(text, -1)), label


# Do async prefetching / buffering of the data for best performance on GPU.
train_ds = raw_train_ds.map(vectorize_text).cache().prefetch(buffer_size=10)
val_ds = raw_val_ds.map(vectorize_text).cache().prefetch(buffer_size=10)
test_ds = raw_test_ds.map(vectorize_text).cache().prefetch(buffer_size=10)

inputs = keras.Input(shape=(None,), dtype="int64")
x = layers.Embedding(max_features, embedding_dim)(inputs)
x = layers.Dropout(0.5)(x)
x = layers.Conv1D(16, 5, padding="valid", activation="relu", strides=2)(x)
x = layers.Conv1D(16, 5, padding="valid", activation="relu", strides=2)(x)
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dense(16, activation="relu")(x)
x = layers.Dropout(0.5)(x)
predictions = layers.Dense(1, activation="sigmoid", name="predictions")(x)
model = keras.Model(inputs, predictions)
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])

model.fit(train_ds, validation_data=val_ds, epochs=3, callbacks=[PreemptionCallback("runs/imdb")])
model.evaluate(test_ds)
