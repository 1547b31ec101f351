/* libnnie: HiSilicon's neural network accelerator NNIE. The structures are the same on every chip and in every SDK that is known, 32-bit
 * ARM included; only the number of cores differs. Read by C and by cffi.
 */
#ifndef PYASC_HI_NNIE_H
#define PYASC_HI_NNIE_H

#include "base.h"

#define SVP_NNIE_MAX_NET_SEG_NUM 8
#define SVP_NNIE_MAX_INPUT_NUM 16
#define SVP_NNIE_MAX_OUTPUT_NUM 16
#define SVP_NNIE_MAX_ROI_LAYER_NUM_OF_SEG 2
#define SVP_NNIE_MAX_ROI_LAYER_NUM 4
#define SVP_NNIE_NODE_NAME_LEN 32

typedef HI_S32 SVP_NNIE_HANDLE;

typedef enum {
    SVP_BLOB_TYPE_S32 = 0,
    SVP_BLOB_TYPE_U8 = 1,
    SVP_BLOB_TYPE_YVU420SP = 2,
    SVP_BLOB_TYPE_YVU422SP = 3,
    SVP_BLOB_TYPE_VEC_S32 = 4,
    SVP_BLOB_TYPE_SEQ_S32 = 5,
    SVP_BLOB_TYPE_BUTT = 6
} SVP_BLOB_TYPE_E;

typedef enum { SVP_NNIE_ID_0 = 0, SVP_NNIE_ID_1 = 1, SVP_NNIE_ID_BUTT } SVP_NNIE_ID_E;

typedef enum { SVP_NNIE_RUN_MODE_CHIP = 0, SVP_NNIE_RUN_MODE_FUNC_SIM = 1, SVP_NNIE_RUN_MODE_BUTT } SVP_NNIE_RUN_MODE_E;

typedef enum {
    SVP_NNIE_NET_TYPE_CNN = 0,
    SVP_NNIE_NET_TYPE_ROI = 1,
    SVP_NNIE_NET_TYPE_RECURRENT = 2,
    SVP_NNIE_NET_TYPE_BUTT
} SVP_NNIE_NET_TYPE_E;

typedef enum { SVP_NNIE_ROIPOOL_TYPE_NORMAL = 0, SVP_NNIE_ROIPOOL_TYPE_PS = 1, SVP_NNIE_ROIPOOL_TYPE_BUTT } SVP_NNIE_ROIPOOL_TYPE_E;

typedef struct {
    HI_U64 u64PhyAddr;
    HI_U64 u64VirAddr;
    HI_U32 u32Size;
} SVP_MEM_INFO_S;

typedef SVP_MEM_INFO_S SVP_SRC_MEM_INFO_S;

/* The virtual address comes first here, and second in SVP_MEM_INFO_S. */
typedef struct {
    SVP_BLOB_TYPE_E enType;
    HI_U32 u32Stride; /* bytes of a line */
    HI_U64 u64VirAddr;
    HI_U64 u64PhyAddr;
    HI_U32 u32Num;
    union {
        struct {
            HI_U32 u32Width;
            HI_U32 u32Height;
            HI_U32 u32Chn;
        } stWhc;
        struct {
            HI_U32 u32Dim;
            HI_U64 u64VirAddrStep;
        } stSeq;
    } unShape;
} SVP_BLOB_S;

typedef SVP_BLOB_S SVP_SRC_BLOB_S;
typedef SVP_BLOB_S SVP_DST_BLOB_S;

typedef struct {
    SVP_BLOB_TYPE_E enType;
    union {
        struct {
            HI_U32 u32Width;
            HI_U32 u32Height;
            HI_U32 u32Chn;
        } stWhc;
        HI_U32 u32Dim;
    } unShape;
    HI_U32 u32NodeId;
    HI_CHAR szName[SVP_NNIE_NODE_NAME_LEN];
} SVP_NNIE_NODE_S;

typedef struct {
    HI_U32 u32SrcHeight;
    HI_U32 u32SrcWidth;
    HI_U32 u32SrcMapNum;
    HI_U32 u32DstHeight;
    HI_U32 u32DstWidth;
    HI_U32 u32DstMapNum;
    HI_U32 u32DinWidthRamOffset;
    HI_U32 u32DinHeightRamOffset;
    HI_U32 u32TotalDinWidthRamOffset;
    HI_U32 u32TotalDinHeightRamOffset;
    HI_U32 u32BlockMaxHeight;
    HI_U32 u32BlockNum;
    HI_U32 u32BboxMaxNum;
    HI_U32 u32SpatialScale;
    HI_BOOL bNormPPMode;
    HI_BOOL bTotalPPMode;
    HI_BOOL bHighPrec;
    SVP_NNIE_ROIPOOL_TYPE_E enRoiPoolType;
    HI_CHAR szName[SVP_NNIE_NODE_NAME_LEN];
} SVP_NNIE_ROIPOOL_INFO_S;

typedef struct {
    SVP_NNIE_NET_TYPE_E enNetType;
    HI_U16 u16SrcNum;
    HI_U16 u16DstNum;
    HI_U16 u16RoiPoolNum;
    HI_U16 u16MaxStep;
    HI_U32 u32InstOffset;
    HI_U32 u32InstLen;
    SVP_NNIE_NODE_S astSrcNode[SVP_NNIE_MAX_INPUT_NUM];
    SVP_NNIE_NODE_S astDstNode[SVP_NNIE_MAX_OUTPUT_NUM];
    HI_U32 au32RoiIdx[SVP_NNIE_MAX_ROI_LAYER_NUM_OF_SEG];
} SVP_NNIE_SEG_S;

typedef struct {
    SVP_NNIE_RUN_MODE_E enRunMode;
    HI_U32 u32TmpBufSize;
    HI_U32 u32NetSegNum;
    SVP_NNIE_SEG_S astSeg[SVP_NNIE_MAX_NET_SEG_NUM];
    SVP_NNIE_ROIPOOL_INFO_S astRoiInfo[SVP_NNIE_MAX_ROI_LAYER_NUM];
    SVP_MEM_INFO_S stBase;
} SVP_NNIE_MODEL_S;

typedef struct {
    HI_U32 u32SrcNum;
    HI_U32 u32DstNum;
    HI_U32 u32NetSegId;
    SVP_NNIE_ID_E enNnieId;
    SVP_MEM_INFO_S stTmpBuf;
    SVP_MEM_INFO_S stTskBuf;
} SVP_NNIE_FORWARD_CTRL_S;

typedef struct {
    HI_U32 u32SrcNum;
    HI_U32 u32DstNum;
    HI_U32 u32ProposalNum;
    HI_U32 u32NetSegId;
    SVP_NNIE_ID_E enNnieId;
    SVP_MEM_INFO_S stTmpBuf;
    SVP_MEM_INFO_S stTskBuf;
} SVP_NNIE_FORWARD_WITHBBOX_CTRL_S;

HI_S32 HI_MPI_SVP_NNIE_LoadModel(const SVP_SRC_MEM_INFO_S *pstModelBuf, SVP_NNIE_MODEL_S *pstModel);
HI_S32 HI_MPI_SVP_NNIE_UnloadModel(SVP_NNIE_MODEL_S *pstModel);
HI_S32 HI_MPI_SVP_NNIE_GetTskBufSize(HI_U32 u32MaxInputNum, HI_U32 u32MaxBboxNum, const SVP_NNIE_MODEL_S *pstModel,
                                     HI_U32 au32TskBufSize[], HI_U32 u32NetSegNum);
HI_S32 HI_MPI_SVP_NNIE_Forward(SVP_NNIE_HANDLE *phSvpNnieHandle, const SVP_SRC_BLOB_S astSrc[], const SVP_NNIE_MODEL_S *pstModel,
                               const SVP_DST_BLOB_S astDst[], const SVP_NNIE_FORWARD_CTRL_S *pstForwardCtrl, HI_BOOL bInstant);
HI_S32 HI_MPI_SVP_NNIE_ForwardWithBbox(SVP_NNIE_HANDLE *phSvpNnieHandle, const SVP_SRC_BLOB_S astSrc[], const SVP_SRC_BLOB_S astBbox[],
                                       const SVP_NNIE_MODEL_S *pstModel, const SVP_DST_BLOB_S astDst[],
                                       const SVP_NNIE_FORWARD_WITHBBOX_CTRL_S *pstForwardCtrl, HI_BOOL bInstant);
HI_S32 HI_MPI_SVP_NNIE_Query(SVP_NNIE_ID_E enNnieId, SVP_NNIE_HANDLE svpNnieHandle, HI_BOOL *pbFinish, HI_BOOL bBlock);
/* Not in every SDK: look these up before use. */
HI_S32 HI_MPI_SVP_NNIE_AddTskBuf(const SVP_MEM_INFO_S *pstTskBuf);
HI_S32 HI_MPI_SVP_NNIE_RemoveTskBuf(const SVP_MEM_INFO_S *pstTskBuf);
HI_S32 HI_MPI_SVP_NNIE_Query_Timeout(SVP_NNIE_ID_E enNnieId, SVP_NNIE_HANDLE svpNnieHandle, HI_S32 s32MilliSec, HI_BOOL *pbFinish);

#endif
