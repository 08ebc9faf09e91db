"""The scripts of the gallery: what is in each, and what is promised for it.

Nothing here imports TensorFlow: the page is written without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent

#: Keras' own folders, in the order of the page, with their headings.
FOLDERS = {
    "vision": "Vision",
    "generative": "Generative models",
    "nlp": "Text",
    "timeseries": "Timeseries",
    "structured_data": "Structured data",
    "audio": "Audio",
    "graph": "Graphs",
    "keras_recipes": "Recipes",
    "guides": "Guides",
}


@dataclass(frozen=True)
class Identical:
    """The same bits as undisturbed, and the log promises them before the first step.

    Attributes:
        match: A regular expression that what it says has: the promise, or an exception for something that it cannot see
            into and that this script does not have, such as the state of a callback.
    """

    match: str = "bit-identical"


@dataclass(frozen=True)
class Said:
    """Not the same bits, and the log says so before the first step.

    Attributes:
        match: A regular expression that what it says has.
        by_chance: Whether the bits may be the same all the same, such as where they depend on how far ahead of training
            data was drawn.
    """

    match: str
    by_chance: bool = False


@dataclass(frozen=True)
class Script:
    """One script.

    Attributes:
        name: Its folder and its name, without ".py".
        shown: What is in it, in the words of the page.
        validations: How many validations an undisturbed run makes; one of them is preempted, and a training step.
        verdict: What is promised for it.
        short: Whether `make test` drills it; `make chaos` drills all.
    """

    name: str
    shown: str
    validations: int
    verdict: Identical | Said = field(default_factory=Identical)
    short: bool = False

    @property
    def path(self) -> Path:
        return HERE / f"{self.name}.py"


SCRIPTS = (
    Script("vision/mnist_convnet", "arrays with validation_split", 3),
    Script(
        "vision/image_classification_from_scratch",
        "image_dataset_from_directory, augmentation layers in a parallel map",
        2,
        Said("Move random layers into the model"),
    ),
    Script(
        "vision/image_classification_with_vision_transformer",
        "augmentation and an adapted normalization inside the model, AdamW, best weights in a file",
        3,
    ),
    Script("vision/oxford_pets_image_segmentation", "U-Net, images and masks decoded in a map", 3),
    Script(
        "vision/super_resolution_sub_pixel",
        "validation_split of a directory, a callback that predicts and reads a dataset",
        3,
    ),
    Script("vision/siamese_contrastive", "pairs: two inputs of one shared network, Lambda layers", 3),
    Script(
        "vision/siamese_network",
        "batches (anchor, positive, negative), own train_step, take and skip of one shuffle below another",
        2,
    ),
    Script(
        "vision/metric_learning",
        "batches that the model cannot call, drawn by a PyDataset with random.choice",
        0,
        Said("global random state", by_chance=True),
    ),
    Script("vision/knowledge_distillation", "teacher, distilled student and student: three fits", 2),
    Script("vision/captcha_ocr", "CTC loss added by a layer, dictionaries of inputs, EarlyStopping", 3),
    Script(
        "vision/semisupervised_simclr",
        "three fits: baseline, contrastive pretraining with two optimizers and no call(), fine-tuning",
        6,
    ),
    Script(
        "vision/masked_image_modeling",
        "masked autoencoder without call(), a schedule of its own",
        2,
    ),
    Script("vision/autoencoder", "one model fitted twice, on arrays", 4),
    Script("vision/mixup", "two shuffled datasets zipped, tf.random.gamma in a map", 2),
    Script(
        "vision/flowers_take_skip",
        "take and skip of one dataset that each epoch shuffles again",
        3,
    ),
    Script("vision/stateless_augmentation", "seeds from a counter zipped with the images, a parallel map", 3),
    Script(
        "vision/progressive_unfreezing",
        "layers that a callback makes trainable, by epochs",
        4,
        Identical("exact if the training step, which cannot be looked at before it runs"),
    ),
    Script(
        "vision/stochastic_weight_averaging",
        "averaged weights put in by a callback, moving statistics gathered anew",
        6,
    ),
    Script(
        "vision/video_from_generator",
        "from_generator and cache, TimeDistributed, best weights restored",
        4,
        Identical("exact if"),
    ),
    Script(
        "generative/dcgan_overriding_train_step",
        "GAN without call(), two optimizers of its own compile, a callback that generates",
        0,
    ),
    Script("generative/conditional_gan", "GAN on batches (image, label), shuffled tf.data", 0),
    Script("generative/cyclegan", "four networks, four optimizers, zipped datasets", 0),
    Script(
        "generative/wgan_gp",
        "gradient penalty, several discriminator steps, tf.random.normal in train_step",
        0,
        Said("[Rr]andom"),
        short=True,
    ),
    Script("generative/vae", "sampling layer, trackers of losses, own train_step, no call()", 0),
    Script(
        "generative/ddim",
        "diffusion model with a network of moving averages, Keras' global seed, plots",
        2,
    ),
    Script(
        "generative/kl_annealing",
        "the weight of a loss in a variable of the script, set by a callback",
        5,
    ),
    Script(
        "generative/text_generation_with_miniature_gpt",
        "a callback that samples with np.random",
        0,
    ),
    Script(
        "nlp/text_classification_from_scratch", "text_dataset_from_directory, TextVectorization, cache", 3
    ),
    Script("nlp/text_classification_with_transformer", "attention on padded arrays", 3),
    Script("nlp/addition_rnn", "a loop of fits of one epoch, predictions in between", 4),
    Script(
        "nlp/neural_machine_translation_with_transformer",
        "encoder and decoder with masks, shuffle after cache, dictionaries of inputs",
        2,
    ),
    Script("timeseries/timeseries_weather_forecasting", "timeseries_dataset_from_array, LSTM", 3),
    Script(
        "timeseries/timeseries_classification_from_scratch",
        "ModelCheckpoint, ReduceLROnPlateau and EarlyStopping together",
        8,
    ),
    Script("timeseries/timeseries_anomaly_detection", "convolutional autoencoder on windows", 4),
    Script(
        "timeseries/stateful_rnn",
        "stateful GRU, a callback that resets its state",
        3,
    ),
    Script(
        "structured_data/structured_data_classification_with_feature_space",
        "FeatureSpace with crosses, in a parallel map",
        2,
    ),
    Script("structured_data/imbalanced_classification", "class weights, CSVLogger, metrics of frauds", 3),
    Script(
        "structured_data/imbalanced_resampling",
        "three fits with the same metric objects, class weights, sample_from_datasets of repeated shuffles",
        8,
    ),
    Script("structured_data/wide_deep_cross_networks", "make_csv_dataset with its own shuffling, lookups", 3),
    Script(
        "structured_data/tabular_with_py_dataset",
        "PyDataset with two workers and sample weights, CosineDecay, best weights restored",
        4,
        Identical("exact if"),
    ),
    Script("structured_data/collaborative_filtering_for_movielens", "subclassed model of embeddings", 3),
    Script(
        "structured_data/cross_validation",
        "a loop over folds: new models after clear_session, one callback for all of them",
        6,
    ),
    Script(
        "audio/speech_commands_spectrogram", "audio_dataset_from_directory, spectrograms, shard, cache", 3
    ),
    Script("graph/gnn_citations", "graph network on batches of node numbers", 3),
    Script("keras_recipes/tfrecord", "TFRecord files read in parallel, ExponentialDecay, EarlyStopping", 2),
    Script(
        "keras_recipes/debugging_tips",
        "run_eagerly, second-order gradients",
        3,
        verdict=Identical("exact if"),
    ),
    Script("keras_recipes/trainer_pattern", "inner model built by its first batch, clipped gradients", 3),
    Script("keras_recipes/memory_efficient_embeddings", "embeddings of hashed strings, lookup tables", 3),
    Script("keras_recipes/endpoint_layer_pattern", "targets as inputs, the loss added by the last layer", 3),
    Script("keras_recipes/moving_average_weights", "SwapEMAWeights, moving averages of the optimizer", 5),
    Script("keras_recipes/replay_memory", "Q-learning: a fit on a random sample after each episode", 0),
    Script(
        "keras_recipes/learning_rate_finder",
        "a range test that a callback collects, then one cycle of rates, from what it found",
        4,
    ),
    Script("guides/custom_train_step_in_tensorflow", "sample weights, nested logs of test_step", 3),
    Script(
        "guides/writing_your_own_callbacks",
        "early stopping and a learning rate by callbacks of the script's own",
        6,
        short=True,
    ),
    Script(
        "guides/transfer_learning", "pretraining, a new head on a frozen base, fine-tuning: three fits", 5
    ),
    Script(
        "guides/training_with_built_in_methods",
        "several inputs and outputs, weights of losses, TensorBoard",
        3,
    ),
    Script(
        "guides/custom_metrics",
        "a metric, a loss and a layer with state, endless dataset, steps_per_epoch",
        4,
    ),
    Script("guides/mixed_precision", "mixed_float16 with loss scaling", 3),
    Script(
        "guides/multi_task",
        "trainable weights of losses, nested logs of train_step, Lion",
        3,
    ),
    Script(
        "guides/gradient_accumulation", "own train_step that applies the gradients of four batches at once", 3
    ),
)
