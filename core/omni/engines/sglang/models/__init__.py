"""What SGLang finds through SGLANG_EXTERNAL_MODEL_PACKAGE: one model class, which runs any AR model of any plugin."""
