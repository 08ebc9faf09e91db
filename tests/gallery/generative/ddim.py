"""Denoising diffusion implicit models: an EMA network beside the trained one, AdamW, a plot each epoch."""

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from keras_preempt import PreemptionCallback

keras.utils.set_random_seed(88)

image_size, batch_size, ema = 8, 16, 0.99
min_signal_rate, max_signal_rate = 0.02, 0.95
embedding_dims, embedding_max_frequency = 8, 100.0
widths, block_depth = [8, 16], 1

flowers = np.random.uniform(0, 1, size=(320, 1, 1, 3)) * np.linspace(0.4, 1, image_size)[None, :, None, None]
flowers = np.broadcast_to(flowers, (320, image_size, image_size, 3)).astype("float32")


def prepare_dataset(images):
    return (
        tf.data.Dataset.from_tensor_slices(images)
        .cache()
        .repeat(2)
        .shuffle(10 * batch_size)
        .batch(batch_size, drop_remainder=True)
        .prefetch(buffer_size=tf.data.AUTOTUNE)
    )


train_dataset = prepare_dataset(flowers[:192])
val_dataset = prepare_dataset(flowers[192:256])


@keras.saving.register_keras_serializable()
def sinusoidal_embedding(x):
    frequencies = ops.exp(ops.linspace(ops.log(1.0), ops.log(embedding_max_frequency), embedding_dims // 2))
    angular_speeds = ops.cast(2.0 * math.pi * frequencies, "float32")
    return ops.concatenate([ops.sin(angular_speeds * x), ops.cos(angular_speeds * x)], axis=3)


def residual_block(x, width):
    residual = x if x.shape[3] == width else layers.Conv2D(width, kernel_size=1)(x)
    x = layers.BatchNormalization(center=False, scale=False)(x)
    x = layers.Conv2D(width, kernel_size=3, padding="same", activation="swish")(x)
    x = layers.Conv2D(width, kernel_size=3, padding="same")(x)
    return layers.Add()([x, residual])


def get_network():
    noisy_images = keras.Input(shape=(image_size, image_size, 3))
    noise_variances = keras.Input(shape=(1, 1, 1))
    e = layers.Lambda(sinusoidal_embedding, output_shape=(1, 1, embedding_dims))(noise_variances)
    e = layers.UpSampling2D(size=image_size, interpolation="nearest")(e)
    x = layers.Conv2D(widths[0], kernel_size=1)(noisy_images)
    x = layers.Concatenate()([x, e])
    x = skip = residual_block(x, widths[0])
    x = layers.AveragePooling2D(pool_size=2)(x)
    x = residual_block(x, widths[1])
    x = layers.UpSampling2D(size=2, interpolation="bilinear")(x)
    x = layers.Concatenate()([x, skip])
    x = residual_block(x, widths[0])
    x = layers.Conv2D(3, kernel_size=1, kernel_initializer="zeros")(x)
    return keras.Model([noisy_images, noise_variances], x, name="residual_unet")


class DiffusionModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = get_network()
        self.ema_network = keras.models.clone_model(self.network)

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
        self.image_loss_tracker = keras.metrics.Mean(name="i_loss")
        self.color_error = keras.metrics.MeanAbsoluteError(name="color_error")

    @property
    def metrics(self):
        return [self.noise_loss_tracker, self.image_loss_tracker, self.color_error]

    def diffusion_schedule(self, diffusion_times):
        start_angle = ops.cast(ops.arccos(max_signal_rate), "float32")
        end_angle = ops.cast(ops.arccos(min_signal_rate), "float32")
        diffusion_angles = start_angle + diffusion_times * (end_angle - start_angle)
        return ops.sin(diffusion_angles), ops.cos(diffusion_angles)

    def denoise(self, noisy_images, noise_rates, signal_rates, training):
        network = self.network if training else self.ema_network
        pred_noises = network([noisy_images, noise_rates**2], training=training)
        return pred_noises, (noisy_images - noise_rates * pred_noises) / signal_rates

    def generate(self, num_images, diffusion_steps):
        images = keras.random.normal(shape=(num_images, image_size, image_size, 3))
        step_size = 1.0 / diffusion_steps
        next_noisy_images = images
        for step in range(diffusion_steps):
            diffusion_times = ops.ones((num_images, 1, 1, 1)) - step * step_size
            noise_rates, signal_rates = self.diffusion_schedule(diffusion_times)
            pred_noises, images = self.denoise(next_noisy_images, noise_rates, signal_rates, training=False)
            noise_rates, signal_rates = self.diffusion_schedule(diffusion_times - step_size)
            next_noisy_images = signal_rates * images + noise_rates * pred_noises
        return ops.clip(self.normalizer.mean + images * self.normalizer.variance**0.5, 0.0, 1.0)

    def losses_of(self, images, training):
        images = self.normalizer(images, training=training)
        noises = keras.random.normal(shape=(batch_size, image_size, image_size, 3))
        diffusion_times = keras.random.uniform(shape=(batch_size, 1, 1, 1), minval=0.0, maxval=1.0)
        noise_rates, signal_rates = self.diffusion_schedule(diffusion_times)
        noisy_images = signal_rates * images + noise_rates * noises
        pred_noises, pred_images = self.denoise(noisy_images, noise_rates, signal_rates, training)
        return self.loss(noises, pred_noises), self.loss(images, pred_images)

    def train_step(self, images):
        with tf.GradientTape() as tape:
            noise_loss, image_loss = self.losses_of(images, training=True)
        gradients = tape.gradient(noise_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        # track the exponential moving averages of weights
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights, strict=True):
            ema_weight.assign(ema * ema_weight + (1 - ema) * weight)
        return {m.name: m.result() for m in self.metrics[:-1]}

    def test_step(self, images):
        noise_loss, image_loss = self.losses_of(images, training=False)
        self.image_loss_tracker.update_state(image_loss)
        self.noise_loss_tracker.update_state(noise_loss)
        # A stand-in for the KID, which is measured during the evaluation phase only.
        generated_images = self.generate(num_images=batch_size, diffusion_steps=3)
        self.color_error.update_state(ops.mean(images, axis=(1, 2)), ops.mean(generated_images, axis=(1, 2)))
        return {m.name: m.result() for m in self.metrics}

    def plot_images(self, epoch=None, logs=None, num_rows=2, num_cols=2):
        generated_images = self.generate(num_images=num_rows * num_cols, diffusion_steps=3)
        print("mean color of generated images", np.mean(generated_images, axis=(0, 1, 2)))


model = DiffusionModel()
model.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=1e-3, weight_decay=1e-4),
    loss=keras.losses.mean_absolute_error,
)
# calculate mean and variance of training dataset for normalization
model.normalizer.adapt(train_dataset)
model.fit(
    train_dataset,
    epochs=2,
    validation_data=val_dataset,
    callbacks=[
        keras.callbacks.LambdaCallback(on_epoch_end=model.plot_images),
        PreemptionCallback("runs/ddim"),
    ],
)
model.ema_network.save_weights("diffusion_model.weights.h5")
