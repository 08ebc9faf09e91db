"""Reading captchas: CTC loss added by a layer, dictionaries of inputs, EarlyStopping with best weights."""

import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(23)

img_width, img_height, batch_size, max_length = 40, 12, 8, 4
characters = list("2345bcdf")

# Write captchas: a character is a grating, brighter and steeper for later letters.
data_dir = Path("captcha_images")
os.makedirs(data_dir, exist_ok=True)
for _ in range(120):
    text = np.random.choice(len(characters), size=max_length)
    columns = np.arange(img_width // max_length)
    waves = [127 + 15 * number * np.sin(columns * (0.5 + 0.2 * number)) for number in text]
    image = np.concatenate(waves) + np.random.normal(0, 8, (img_height, img_width))
    name = "".join(characters[number] for number in text)
    tf.io.write_file(
        str(data_dir / f"{name}.png"), tf.io.encode_png(np.clip(image, 0, 255)[..., None].astype("uint8"))
    )

images = sorted(map(str, data_dir.glob("*.png")))
labels = [Path(image).stem for image in images]
char_to_num = layers.StringLookup(vocabulary=characters, mask_token=None)


def split_data(images, labels, train_size=0.8):
    size = len(images)
    indices = np.arange(size)
    np.random.shuffle(indices)
    train_samples = int(size * train_size)
    first, last = indices[:train_samples], indices[train_samples:]
    return images[first], images[last], labels[first], labels[last]


x_train, x_valid, y_train, y_valid = split_data(np.array(images), np.array(labels))


def encode_single_sample(img_path, label):
    img = tf.io.decode_png(tf.io.read_file(img_path), channels=1)
    img = tf.image.resize(tf.image.convert_image_dtype(img, tf.float32), [img_height, img_width])
    # Transpose the image because we want the time dimension to correspond to the width of the image.
    img = tf.transpose(img, perm=[1, 0, 2])
    label = char_to_num(tf.strings.unicode_split(label, input_encoding="UTF-8"))
    return {"image": img, "label": label}


def make_dataset(x, y):
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    dataset = dataset.map(encode_single_sample, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(batch_size).prefetch(buffer_size=tf.data.AUTOTUNE)


train_dataset = make_dataset(x_train, y_train)
validation_dataset = make_dataset(x_valid, y_valid)


class CTCLayer(layers.Layer):
    def call(self, y_true, y_pred):
        # Compute the training-time loss value and add it to the layer using `self.add_loss()`.
        batch_len = ops.shape(y_true)[0]
        input_length = ops.shape(y_pred)[1] * ops.ones(shape=(batch_len,), dtype="int32")
        label_length = ops.shape(y_true)[1] * ops.ones(shape=(batch_len,), dtype="int32")
        loss = ops.ctc_loss(ops.cast(y_true, "int32"), y_pred, label_length, input_length, mask_index=8)
        self.add_loss(ops.mean(loss))
        # At test time, just return the computed predictions
        return y_pred


def build_model():
    input_img = layers.Input(shape=(img_width, img_height, 1), name="image", dtype="float32")
    labels = layers.Input(name="label", shape=(None,), dtype="float32")
    x = layers.Conv2D(8, (3, 3), activation="relu", kernel_initializer="he_normal", padding="same")(input_img)
    x = layers.MaxPooling2D((2, 2), name="pool1")(x)
    x = layers.Reshape(target_shape=(img_width // 2, (img_height // 2) * 8), name="reshape")(x)
    x = layers.Dense(16, activation="relu", name="dense1")(x)
    x = layers.Dropout(0.2)(x)
    x = layers.Bidirectional(layers.LSTM(16, return_sequences=True, dropout=0.25))(x)
    x = layers.Dense(len(characters) + 1, name="dense2")(x)
    output = CTCLayer(name="ctc_loss")(labels, x)
    model = keras.models.Model(inputs=[input_img, labels], outputs=output, name="ocr_model_v1")
    model.compile(optimizer=keras.optimizers.Adam())
    return model


model = build_model()
early_stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True)
history = model.fit(
    train_dataset,
    validation_data=validation_dataset,
    epochs=3,
    callbacks=[early_stopping, PreemptionCallback("runs/ocr")],
)
prediction_model = keras.models.Model(model.input[0], model.get_layer(name="dense2").output)
print("read", prediction_model.predict(validation_dataset.map(lambda d: d["image"]), verbose=0).shape)
