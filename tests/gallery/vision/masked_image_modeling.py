"""Masked autoencoder: patches are hidden inside train_step, augmentation models are parts of the model."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(42)

BATCH_SIZE, IMAGE_SIZE, PATCH_SIZE, EPOCHS = 16, 16, 4, 2
NUM_PATCHES = (IMAGE_SIZE // PATCH_SIZE) ** 2
MASK_PROPORTION = 0.75
NUM_MASK = int(MASK_PROPORTION * NUM_PATCHES)
ENC_PROJECTION_DIM, DEC_PROJECTION_DIM = 16, 8

waves = np.sin(np.linspace(0, 6, 16)[None] * np.random.uniform(0.3, 2, size=(272, 1)))
images = np.repeat((waves[:, :, None] * waves[:, None, :] * 127 + 127)[..., None], 3, axis=3).astype("uint8")


def prepare_data(images, is_train=True):
    dataset = tf.data.Dataset.from_tensor_slices(images)
    if is_train:
        dataset = dataset.shuffle(BATCH_SIZE * 10)
    return dataset.batch(BATCH_SIZE, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


train_ds = prepare_data(images[:208])
val_ds = prepare_data(images[208:], is_train=False)


def get_train_augmentation_model():
    return keras.Sequential(
        [
            layers.Rescaling(1 / 255.0),
            layers.Resizing(IMAGE_SIZE + 4, IMAGE_SIZE + 4),
            layers.RandomCrop(IMAGE_SIZE, IMAGE_SIZE),
            layers.RandomFlip("horizontal"),
        ],
        name="train_data_augmentation",
    )


def get_test_augmentation_model():
    return keras.Sequential([layers.Rescaling(1 / 255.0), layers.Resizing(IMAGE_SIZE, IMAGE_SIZE)])


class Patches(layers.Layer):
    def __init__(self, patch_size=PATCH_SIZE, **kwargs):
        super().__init__(**kwargs)
        self.patch_size = patch_size
        self.resize = layers.Reshape((-1, patch_size * patch_size * 3))

    def call(self, images):
        return self.resize(ops.image.extract_patches(images, size=self.patch_size))


class PatchEncoder(layers.Layer):
    def __init__(self, projection_dim=ENC_PROJECTION_DIM, **kwargs):
        super().__init__(**kwargs)
        self.projection_dim = projection_dim
        self.seed_generator = keras.random.SeedGenerator(7)

    def build(self, input_shape):
        _, self.num_patches, self.patch_area = input_shape
        # A trainable token that stands for a patch that is hidden.
        self.mask_token = self.add_weight(shape=(1, self.patch_area), initializer="random_normal")
        self.projection = layers.Dense(units=self.projection_dim)
        self.position_embedding = layers.Embedding(self.num_patches, self.projection_dim)

    def call(self, patches):
        batch_size = ops.shape(patches)[0]
        positions = self.position_embedding(ops.arange(self.num_patches)[None])
        positions = ops.tile(positions, [batch_size, 1, 1])
        patch_embeddings = self.projection(patches) + positions
        scores = keras.random.uniform(shape=(batch_size, self.num_patches), seed=self.seed_generator)
        rand_indices = ops.argsort(scores, axis=-1)
        mask_indices, unmask_indices = rand_indices[:, :NUM_MASK], rand_indices[:, NUM_MASK:]
        unmasked_embeddings = tf.gather(patch_embeddings, unmask_indices, axis=1, batch_dims=1)
        mask_tokens = ops.tile(self.mask_token[None], [batch_size, NUM_MASK, 1])
        masked_embeddings = self.projection(mask_tokens)
        masked_embeddings += tf.gather(positions, mask_indices, axis=1, batch_dims=1)
        return unmasked_embeddings, masked_embeddings, mask_indices, unmask_indices


def create_transformer(length, dim, name):
    inputs = layers.Input((length, dim))
    x1 = layers.LayerNormalization(epsilon=1e-6)(inputs)
    attention_output = layers.MultiHeadAttention(num_heads=2, key_dim=dim, dropout=0.1)(x1, x1)
    x2 = layers.Add()([attention_output, inputs])
    x3 = layers.Dense(dim, activation="gelu")(layers.LayerNormalization(epsilon=1e-6)(x2))
    return keras.Model(inputs, layers.Add()([layers.Dropout(0.1)(x3), x2]), name=name)


def create_decoder():
    inputs = layers.Input((NUM_PATCHES, ENC_PROJECTION_DIM))
    x = layers.Dense(DEC_PROJECTION_DIM)(inputs)
    x = create_transformer(NUM_PATCHES, DEC_PROJECTION_DIM, "decoder_block")(x)
    x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
    x = layers.Dense(units=IMAGE_SIZE * IMAGE_SIZE * 3, activation="sigmoid")(x)
    return keras.Model(inputs, layers.Reshape((IMAGE_SIZE, IMAGE_SIZE, 3))(x), name="mae_decoder")


class MaskedAutoencoder(keras.Model):
    def __init__(
        self, train_augmentation_model, test_augmentation_model, patch_layer, patch_encoder, **kwargs
    ):
        super().__init__(**kwargs)
        self.train_augmentation_model = train_augmentation_model
        self.test_augmentation_model = test_augmentation_model
        self.patch_layer = patch_layer
        self.patch_encoder = patch_encoder
        self.encoder = create_transformer(NUM_PATCHES - NUM_MASK, ENC_PROJECTION_DIM, "mae_encoder")
        self.decoder = create_decoder()

    def calculate_loss(self, images, test=False):
        augmentation = self.test_augmentation_model if test else self.train_augmentation_model
        augmented_images = augmentation(images, training=not test)
        patches = self.patch_layer(augmented_images)
        unmasked, masked, mask_indices, _ = self.patch_encoder(patches)
        decoder_inputs = ops.concatenate([self.encoder(unmasked, training=not test), masked], axis=1)
        decoder_patches = self.patch_layer(self.decoder(decoder_inputs, training=not test))
        loss_patch = tf.gather(patches, mask_indices, axis=1, batch_dims=1)
        loss_output = tf.gather(decoder_patches, mask_indices, axis=1, batch_dims=1)
        return self.compute_loss(y=loss_patch, y_pred=loss_output), loss_patch, loss_output

    def train_step(self, images):
        with tf.GradientTape() as tape:
            total_loss, loss_patch, loss_output = self.calculate_loss(images)
        grads = tape.gradient(total_loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        results = {}
        for metric in self.metrics:
            metric.update_state(loss_patch, loss_output)
            results[metric.name] = metric.result()
        return results

    def test_step(self, images):
        _total_loss, loss_patch, loss_output = self.calculate_loss(images, test=True)
        results = {}
        for metric in self.metrics:
            metric.update_state(loss_patch, loss_output)
            results[metric.name] = metric.result()
        return results


class WarmUpCosine(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, learning_rate_base, total_steps, warmup_steps):
        super().__init__()
        self.learning_rate_base = learning_rate_base
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        cosine = ops.cos(np.pi * (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        warm_up = self.learning_rate_base * step / self.warmup_steps
        return ops.where(step < self.warmup_steps, warm_up, 0.5 * self.learning_rate_base * (1 + cosine))


class TrainMonitor(keras.callbacks.Callback):
    """Reconstructs a few test images now and then."""

    def on_epoch_end(self, epoch, logs=None):
        test_images = next(iter(val_ds))
        patches = self.model.patch_layer(self.model.test_augmentation_model(test_images))
        unmasked, masked, _, _ = self.model.patch_encoder(patches)
        decoder_inputs = ops.concatenate([self.model.encoder(unmasked), masked], axis=1)
        print("reconstructed", float(ops.mean(self.model.decoder(decoder_inputs))))


mae_model = MaskedAutoencoder(
    train_augmentation_model=get_train_augmentation_model(),
    test_augmentation_model=get_test_augmentation_model(),
    patch_layer=Patches(),
    patch_encoder=PatchEncoder(),
)
mae_model.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=WarmUpCosine(5e-3, 26, 4), weight_decay=1e-4),
    loss=keras.losses.MeanSquaredError(),
    metrics=["mae"],
)
mae_model.fit(
    train_ds,
    epochs=EPOCHS,
    validation_data=val_ds,
    callbacks=[TrainMonitor(), PreemptionCallback("runs/mae")],
)
