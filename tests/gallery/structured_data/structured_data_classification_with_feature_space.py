"""Structured data classification with FeatureSpace: one encoding of a dictionary of columns, in the pipeline."""

import keras
import numpy as np
import tensorflow as tf
from keras.utils import FeatureSpace

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(1337)

count = 400
columns = {
    "sex": np.random.randint(0, 2, size=count),
    "cp": np.random.randint(0, 5, size=count),
    "thal": np.random.choice(["normal", "fixed", "reversible"], size=count),
    "age": np.random.randint(29, 77, size=count),
    "chol": np.random.normal(240, 50, size=count).astype("float32"),
    "oldpeak": np.abs(np.random.normal(1, 1, size=count)).astype("float32"),
}
columns["target"] = ((columns["age"] > 50) & (columns["chol"] > 220)).astype("int64")
# Split the data into a training and validation set
picked = np.random.random(count) < 0.2


def dataframe_to_dataset(rows):
    dataframe = {name: values[rows] for name, values in columns.items()}
    labels = dataframe.pop("target")
    ds = tf.data.Dataset.from_tensor_slices((dataframe, labels))
    return ds.shuffle(buffer_size=count)


train_ds = dataframe_to_dataset(~picked).batch(16)
val_ds = dataframe_to_dataset(picked).batch(16)

feature_space = FeatureSpace(
    features={
        # Categorical features encoded as integers
        "sex": "integer_categorical",
        "cp": "integer_categorical",
        # Categorical feature encoded as string
        "thal": "string_categorical",
        # Numerical features to discretize
        "age": "float_discretized",
        # Numerical features to normalize
        "chol": "float_normalized",
        "oldpeak": "float_normalized",
    },
    # We create additional features by hashing value co-occurrences into vectors.
    crosses=[("sex", "age"), ("thal", "cp")],
    crossing_dim=8,
    output_mode="concat",
)
train_ds_with_no_labels = train_ds.map(lambda x, _: x)
feature_space.adapt(train_ds_with_no_labels)

preprocessed_train_ds = train_ds.map(lambda x, y: (feature_space(x), y), num_parallel_calls=tf.data.AUTOTUNE)
preprocessed_train_ds = preprocessed_train_ds.prefetch(tf.data.AUTOTUNE)
preprocessed_val_ds = val_ds.map(lambda x, y: (feature_space(x), y), num_parallel_calls=tf.data.AUTOTUNE)
preprocessed_val_ds = preprocessed_val_ds.prefetch(tf.data.AUTOTUNE)

dict_inputs = feature_space.get_inputs()
encoded_features = feature_space.get_encoded_features()
x = keras.layers.Dense(32, activation="relu")(encoded_features)
x = keras.layers.Dropout(0.5)(x)
predictions = keras.layers.Dense(1, activation="sigmoid")(x)
training_model = keras.Model(inputs=encoded_features, outputs=predictions)
training_model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
inference_model = keras.Model(inputs=dict_inputs, outputs=predictions)

training_model.fit(
    preprocessed_train_ds,
    epochs=2,
    validation_data=preprocessed_val_ds,
    verbose=2,
    callbacks=[PreemptionCallback("runs/heart")],
)
sample = {name: tf.convert_to_tensor([values[0]]) for name, values in columns.items() if name != "target"}
print("risk of a heart disease", float(inference_model.predict(sample, verbose=0)[0][0]))
