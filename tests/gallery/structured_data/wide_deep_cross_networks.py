"""Wide and deep network on CSV files: make_csv_dataset with its own shuffling, lookups inside the model."""

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(404)

NUMERIC_FEATURE_NAMES = ["aspect", "elevation"]
CATEGORICAL_FEATURES_WITH_VOCABULARY = {"soil": ["clay", "loam", "sand"], "wilderness": ["north", "south"]}
TARGET_FEATURE_NAME, TARGET_FEATURE_LABELS = "cover", ["0", "1", "2"]
CSV_HEADER = [*NUMERIC_FEATURE_NAMES, *CATEGORICAL_FEATURES_WITH_VOCABULARY, TARGET_FEATURE_NAME]
COLUMN_DEFAULTS = [[0.0], [0.0], ["NA"], ["NA"], ["NA"]]
batch_size, num_epochs, hidden_units = 32, 3, [16, 16]

for name, count in (("train_data.csv", 512), ("test_data.csv", 128)):
    with open(name, "w") as file:
        for _ in range(count):
            aspect, elevation = np.random.normal(size=2).round(3)
            soil, wilderness = (
                np.random.choice(["clay", "loam", "sand"]),
                np.random.choice(["north", "south"]),
            )
            cover = int(elevation > 0) + int(soil == "loam")
            file.write(f"{aspect},{elevation},{soil},{wilderness},{cover}\n")

target_label_lookup = layers.StringLookup(
    vocabulary=TARGET_FEATURE_LABELS, mask_token=None, num_oov_indices=0
)


def get_dataset_from_csv(csv_file_path, batch_size, shuffle=False):
    dataset = tf.data.experimental.make_csv_dataset(
        csv_file_path,
        batch_size=batch_size,
        column_names=CSV_HEADER,
        column_defaults=COLUMN_DEFAULTS,
        label_name=TARGET_FEATURE_NAME,
        num_epochs=1,
        header=False,
        shuffle=shuffle,
    )
    dataset = dataset.map(lambda features, target: (features, target_label_lookup(target)))
    return dataset.cache()


def create_model_inputs():
    inputs = {name: layers.Input(name=name, shape=(), dtype="float32") for name in NUMERIC_FEATURE_NAMES}
    for name in CATEGORICAL_FEATURES_WITH_VOCABULARY:
        inputs[name] = layers.Input(name=name, shape=(), dtype="string")
    return inputs


def encode_inputs(inputs, use_embedding=False):
    encoded_features = []
    for feature_name in inputs:
        if feature_name in CATEGORICAL_FEATURES_WITH_VOCABULARY:
            vocabulary = CATEGORICAL_FEATURES_WITH_VOCABULARY[feature_name]
            lookup = layers.StringLookup(
                vocabulary=vocabulary,
                mask_token=None,
                num_oov_indices=0,
                output_mode="int" if use_embedding else "multi_hot",
            )
            if use_embedding:
                embedding_dims = int(math.sqrt(len(vocabulary)))
                embedding = layers.Embedding(input_dim=len(vocabulary), output_dim=embedding_dims)
                encoded_feature = embedding(lookup(inputs[feature_name]))
            else:
                encoded_feature = lookup(keras.ops.expand_dims(inputs[feature_name], -1))
        else:
            encoded_feature = keras.ops.expand_dims(inputs[feature_name], -1)
        encoded_features.append(encoded_feature)
    return layers.concatenate(encoded_features)


def create_wide_and_deep_model():
    inputs = create_model_inputs()
    wide = layers.BatchNormalization()(encode_inputs(inputs))
    deep = encode_inputs(inputs, use_embedding=True)
    for units in hidden_units:
        deep = layers.Dense(units)(deep)
        deep = layers.BatchNormalization()(deep)
        deep = layers.ReLU()(deep)
        deep = layers.Dropout(0.1)(deep)
    merged = layers.concatenate([wide, deep])
    return keras.Model(inputs=inputs, outputs=layers.Dense(units=3, activation="softmax")(merged))


model = create_wide_and_deep_model()
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=0.001),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
train_dataset = get_dataset_from_csv("train_data.csv", batch_size, shuffle=True)
test_dataset = get_dataset_from_csv("test_data.csv", batch_size)
model.fit(
    train_dataset,
    epochs=num_epochs,
    validation_data=test_dataset,
    callbacks=[PreemptionCallback("runs/covertype")],
)
_, accuracy = model.evaluate(test_dataset, verbose=0)
print(f"Test accuracy: {round(accuracy * 100, 2)}%")
