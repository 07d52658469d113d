{{/* Annotations of a `helm test` hook. Objects of a failed test are kept for debugging. Input: its weight */}}
{{- define "memtune.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* A job that finishes in seconds. The virtual GPU needs no hardware. */}}
{{- define "memtune.testJob" -}}
apiVersion: memtune.dev/v1alpha1
kind: MemoryTunedJob
metadata:
  generateName: {{ include "memtune.fullname" . | trunc 30 }}-test-
  namespace: {{ include "memtune.testNamespace" . | quote }}
spec:
  model:
    architecture: {hiddenSize: 64, layers: 2, heads: 4, ffnSize: 128, vocabSize: 512}
  training: {globalBatchSize: 4, sequenceLength: 32}
  resources: {nodes: 1, gpusPerNode: 1, gpuMemory: 4Gi, device: virtual}
  tuning: {mode: {{ .Values.test.mode }}, maxProbes: 1}
{{- end -}}
